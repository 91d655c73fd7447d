"""Leaving out tokens that a text never uses: exact on text of the tokens that stay."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny import BERT, BY_TYPE, random_model, save_with_tokenizer, tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import collab
from collab.errors import ConfigurationError, DataError, UnsupportedArchitectureError
from collab.models.layers import count_parameters

CORPUS = ["the cat sat on the mat", "a dog sat near the cat", "birds sing in the early morning", "the mat is early"] * 3
USED = ["the cat sat on the mat", "birds sing"]


def trained(kind: str) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of a kind, trained on a few sentences, with special tokens around a text."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    elif kind == "BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=340, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=70, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=ends
    )
    names = {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.mark.parametrize("kind", ["WordPiece", "BPE", "Unigram"])
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_exact_on_text_of_the_same_tokens(kind: str, model_type: str) -> None:
    tokenizer = trained(kind)
    row = BY_TYPE[model_type]
    config = row.config(vocab_size=len(tokenizer) + 3, pad_token_id=tokenizer.pad_token_id)
    native_class = transformers.AutoModelForMaskedLM._model_mapping[row.config_class]
    model = random_model(native_class, config)
    kept = collab.keep_tokens(collab.Checkpoint(model, tokenizer), USED)
    assert kept.report.tokens.after == kept.model.config.vocab_size == len(kept.tokenizer) < kept.report.tokens.before
    assert kept.report.parameters.after < kept.report.parameters.before
    assert set(tokenizer.all_special_tokens) <= set(kept.tokenizer.get_vocab())
    assert kept.tokenizer.pad_token_id == kept.model.config.pad_token_id
    assert kept.model.get_output_embeddings().weight is kept.model.get_input_embeddings().weight
    for text in (*USED, "the mat", "birds on the cat"):
        before, after = tokenizer(text, return_tensors="pt"), kept.tokenizer(text, return_tensors="pt")
        assert tokenizer.tokenize(text) == kept.tokenizer.tokenize(text)
        assert kept.tokenizer.decode(after["input_ids"][0]) == tokenizer.decode(before["input_ids"][0])
        with torch.no_grad():
            expected, actual = (
                each(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                for each, batch in ((model, before), (kept.model, after))
            )
        torch.testing.assert_close(actual, expected[..., list(kept.report.ids)], rtol=0, atol=1e-6)


@pytest.mark.parametrize("model_type", ["marian", "bart", "mbart", "m2m_100", "pegasus", "t5"])
def test_encoder_decoders(model_type: str) -> None:
    tokenizer = trained("BPE")
    last = len(tokenizer)  # as Marian's, whose padding comes last
    tokenizer.add_special_tokens({"additional_special_tokens": ["<de>"]})
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    row = BY_TYPE[model_type]
    config = row.config(vocab_size=last + 1, decoder_start_token_id=last, **ids)
    model = random_model(transformers.AutoModelForSeq2SeqLM._model_mapping[row.config_class], config)
    model.generation_config.update(forced_bos_token_id=last, bad_words_ids=[[last], [last - 1]], suppress_tokens=[7])
    kept = collab.keep_tokens(collab.Checkpoint(model, tokenizer), USED)
    smaller = {former: number for number, former in enumerate(kept.report.ids)}
    assert kept.report.tokens.after < kept.report.tokens.before
    for settings in (kept.model.config, kept.model.generation_config):
        assert settings.decoder_start_token_id == len(kept.report.ids) - 1
        assert settings.pad_token_id == kept.tokenizer.pad_token_id
    assert kept.model.generation_config.forced_bos_token_id == len(kept.report.ids) - 1
    assert [len(kept.report.ids) - 1] in kept.model.generation_config.bad_words_ids
    assert kept.model.get_output_embeddings().weight is kept.model.get_input_embeddings().weight
    before, after = (each(USED, padding=True, return_tensors="pt") for each in (tokenizer, kept.tokenizer))
    target = torch.tensor([[last, *before["input_ids"][0, :4]]] * 2)
    target_after = torch.tensor([[smaller[int(number)] for number in row] for row in target])
    with torch.no_grad():
        expected, actual = (
            each(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], decoder_input_ids=read).logits
            for each, batch, read in ((model, before, target), (kept.model, after, target_after))
        )
    torch.testing.assert_close(actual, expected[..., list(kept.report.ids)], rtol=0, atol=1e-5)
    written = kept.model.generate(after["input_ids"], attention_mask=after["attention_mask"], max_length=6)
    assert written.max() < len(kept.report.ids)
    assert written[0, 0] == len(kept.report.ids) - 1


def test_an_added_token_without_an_embedding() -> None:
    """Such as one for padding, which GPT-2 lacks: it is left out, but text that needs it is refused."""
    tokenizer = trained("WordPiece")
    model = tiny_model(BERT, vocab_size=len(tokenizer))
    tokenizer.add_tokens(["<more>"])
    kept = collab.keep_tokens(collab.Checkpoint(model, tokenizer), USED)
    assert "<more>" not in kept.tokenizer.get_vocab()
    with pytest.raises(DataError, match="do not belong together"):
        collab.keep_tokens(collab.Checkpoint(model, tokenizer), [*USED, "<more>"])


def test_budgets_count_what_was_left_out(tmp_path: Path) -> None:
    """Alike in a plan and in what it plans."""
    tokenizer = trained("WordPiece")
    model = tiny_model(BERT, vocab_size=len(tokenizer))
    kept = collab.keep_tokens(collab.Checkpoint(model, tokenizer), USED)
    moments = collab.calibrate(kept, USED * 8)
    config = collab.CompressionConfig(params=0.6)
    planned = collab.plan(kept, moments, config, fractions=[0.6])
    made = collab.compress(kept, config, moments)
    assert planned.model_parameters == made.report.parameters.before == kept.report.parameters.before
    assert planned.options[0].model == pytest.approx(made.report.parameters.ratio, abs=0.002)
    assert planned.options[0].reached == pytest.approx(planned.options[0].model)
    assert planned.options[0].budget == 0.6
    collab.save(made, tmp_path / "out")
    top = collab.load(str(tmp_path / "out")).history.report["parameters"]["model"]
    assert (top["before"], top["after"]) == (made.report.parameters.before, made.report.parameters.after)


def test_other_words_are_split_or_unknown() -> None:
    tokenizer = trained("WordPiece")
    kept = collab.keep_tokens(collab.Checkpoint(tiny_model(BERT, vocab_size=len(tokenizer)), tokenizer), USED)
    assert "<unk>" not in tokenizer.tokenize("dog")
    assert "<unk>" in kept.tokenizer.tokenize("dog")


def test_a_unigram_tokenizer_without_an_unknown_token() -> None:
    serialized = json.loads(trained("Unigram").backend_tokenizer.to_str())
    serialized["model"]["unk_id"] = None
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(serialized)), pad_token="<pad>"
    )
    kept = collab.keep_tokens(collab.Checkpoint(tiny_model(BERT, vocab_size=len(tokenizer)), tokenizer), USED)
    assert len(kept.tokenizer) < len(tokenizer)
    for text in USED:
        assert kept.tokenizer.tokenize(text) == tokenizer.tokenize(text)


def test_a_byte_level_tokenizer_still_reads_everything() -> None:
    tokenizer = trained("BPE")
    kept = collab.keep_tokens(collab.Checkpoint(tiny_model(BERT, vocab_size=len(tokenizer)), tokenizer), USED)
    text = "Zürich 東京 early"
    assert kept.tokenizer.decode(kept.tokenizer(text)["input_ids"], skip_special_tokens=True).strip() == text


def test_what_cannot_be_trimmed() -> None:
    tokenizer = trained("WordPiece")
    model = tiny_model(BERT, vocab_size=len(tokenizer))
    with pytest.raises(DataError, match="no text"):
        collab.keep_tokens(collab.Checkpoint(model, tokenizer), [])
    with pytest.raises(ConfigurationError, match="fast tokenizers only"):
        collab.keep_tokens(collab.Checkpoint(model, object()), USED)
    apart = tiny_model(
        BY_TYPE["marian"], transformers.MarianMTModel, share_encoder_decoder_embeddings=False, tie_word_embeddings=False
    )
    with pytest.raises(UnsupportedArchitectureError, match="vocabularies of their own"):
        collab.keep_tokens(collab.Checkpoint(apart, tokenizer), USED)
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "?": 1}, "?")))
    with pytest.raises(ConfigurationError, match="not of WordLevel"):
        collab.keep_tokens(collab.Checkpoint(model, words), ["a"])


class TestCheckpoints:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        model = tiny_model(BERT, transformers.BertForSequenceClassification)
        return save_with_tokenizer(model, tmp_path / "original")

    def test_converts_and_reloads(self, source: Path, tmp_path: Path) -> None:
        text = tmp_path / "corpus.txt"
        text.write_text("a b c\nb d\n")
        config = collab.ConversionConfig(rank=32, compare=False)
        made = collab.checkpoints.convert(str(source), tmp_path / "out", config, keep_tokens=str(text))
        report = made.history.report
        assert report["keep_tokens"]["tokens"] == {"before": 60, "after": 9, "ratio": 0.15}
        assert json.loads((tmp_path / "out" / "collab_report.json").read_text())["keep_tokens"] == report["keep_tokens"]
        assert "The vocabulary has 9 of 60 tokens" in (tmp_path / "out" / "README.md").read_text()
        results = []
        for folder in (source, tmp_path / "out"):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
            with torch.no_grad():
                results.append(model(**tokenizer("c d a", return_tensors="pt")).logits)
        torch.testing.assert_close(*results, rtol=0, atol=1e-5)

    def test_is_in_the_history_of_what_it_leaves_otherwise(self, source: Path, tmp_path: Path) -> None:
        collab.checkpoints.convert(str(source), tmp_path / "whole", collab.ConversionConfig(rank=32, compare=False))
        for name in ("original", "whole"):
            kept = collab.keep_tokens(collab.load(str(tmp_path / name)), ["a b c", "b d"])
            history = collab.save(kept, tmp_path / f"{name}-cut").report
            assert [entry["step"] for entry in history["history"]] == ["keep_tokens"]
            assert len(collab.load(str(tmp_path / f"{name}-cut")).tokenizer) == 9
        assert history["keep_tokens"]["tokens"]["after"] == 9
        assert history["parameters"]["model"]["after"] == kept.report.parameters.after

    def test_a_model_in_memory_keeps_its_tokenizer(self, source: Path, tmp_path: Path) -> None:
        read = collab.load(str(source))
        kept = collab.keep_tokens(collab.Checkpoint(read.model, read.tokenizer), ["a b c", "b d"])
        collab.save(collab.convert(kept, collab.ConversionConfig(rank=32, compare=False)), tmp_path / "out")
        assert collab.load(str(tmp_path / "out")).tokenizer.get_vocab() == kept.tokenizer.get_vocab()

    def test_the_text_of_calibration(self, source: Path, tmp_path: Path) -> None:
        text = tmp_path / "corpus.txt"
        text.write_text("a b c\nb d\nc d\n")
        config = collab.ConversionConfig(rank=8, refine="none", compare=False)
        request = collab.CalibrationRequest(collab.DataSource(str(text)))
        made = collab.checkpoints.convert(
            str(source), tmp_path / "out", config, calibration=request, keep_tokens="auto"
        )
        report = made.history.report
        assert report["keep_tokens"]["tokens"]["after"] == 9
        with pytest.raises(ConfigurationError, match="give one, or a file of text"):
            collab.checkpoints.convert(str(source), tmp_path / "other", config, keep_tokens="auto")

    def test_a_table_counts_with_every_column(self, source: Path, tmp_path: Path) -> None:
        text = tmp_path / "corpus.tsv"
        text.write_text("number\tfirst\tsecond\n1\ta b\tc\n2\tb\td\n")
        config = collab.ConversionConfig(rank=8, refine="none", compare=False)
        made = collab.checkpoints.convert(str(source), tmp_path / "out", config, keep_tokens=str(text))
        report = made.history.report
        assert report["keep_tokens"]["tokens"]["after"] == 9
        assert report["keep_tokens"]["texts"] == 4

    def test_what_is_written_has_to_be_in_the_text(self, tmp_path: Path) -> None:
        marian = tiny_model(BY_TYPE["marian"], transformers.MarianMTModel)
        folder = save_with_tokenizer(marian, tmp_path / "marian")
        (tmp_path / "pairs.tsv").write_text("en\tde\na b\tc\nb\td\na\tc d\n")
        config = collab.ConversionConfig(rank=8, refine="none", compare=False)
        sources = collab.DataSource(str(tmp_path / "pairs.tsv"), ("en",))
        for columns, raises in ((("en",), True), (("en", "de"), False)):
            request = collab.CalibrationRequest(replace(sources, columns=columns))
            convert = partial(collab.checkpoints.convert, str(folder), tmp_path / "out", config, calibration=request)
            if raises:
                with pytest.raises(ConfigurationError, match="sources without targets"):
                    convert(keep_tokens="auto")
            else:
                assert "It can write no other tokens" in convert(keep_tokens="auto").history.report["notes"][-1]

    def test_what_is_left_out_counts_towards_a_budget_of_parameters(self, source: Path, tmp_path: Path) -> None:
        text = tmp_path / "corpus.txt"
        text.write_text("a b c\nb d\nc d\n" * 20)
        request = collab.CalibrationRequest(collab.DataSource(str(text)))
        reports = {}
        for name, keep in (("all", None), ("few", "auto")):
            config = collab.CompressionConfig(params=0.7, drop_layers=0)
            collab.checkpoints.compress(str(source), tmp_path / name, config, calibration=request, keep_tokens=keep)
            reports[name] = json.loads((tmp_path / name / "collab_report.json").read_text())
        few, full = (reports[name]["history"][0] for name in ("few", "all"))
        assert few["parameters"]["before"] == full["parameters"]["before"]
        assert 0.6 < few["parameters"]["ratio"] <= 0.7  # of what is left without the tokens, more than 0.7
        assert few["settings"]["params"] == 0.7
        assert reports["few"]["keep_tokens"]["tokens"]["after"] == 9
        model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "few")
        assert model.num_parameters() == few["parameters"]["after"]


@pytest.mark.exhaustive
def test_a_real_checkpoint(demo_folder: Path, shared_data: Path) -> None:
    with (shared_data / "data" / "stsb" / "dev.csv").open(newline="", encoding="utf-8") as file:
        texts = [text for record in csv.reader(file) for text in record[:2]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_folder)
    model = transformers.AutoModel.from_pretrained(demo_folder).eval()
    kept = collab.keep_tokens(collab.Checkpoint(model, tokenizer), texts)
    assert kept.report.tokens.after < 0.25 * kept.report.tokens.before
    for start in range(0, 256, 64):
        batch = texts[start : start + 64]
        with torch.no_grad():
            before, after = (
                each(**tokens(batch, padding=True, truncation=True, return_tensors="pt")).last_hidden_state
                for each, tokens in ((model, tokenizer), (kept.model, kept.tokenizer))
            )
        torch.testing.assert_close(after, before, rtol=0, atol=1e-6)


def test_a_budget_that_cannot_be_reached_is_of_the_original() -> None:
    """The message gives fractions of it, with the tokens that were left out, as the budget does."""
    tokenizer = trained("WordPiece")
    model = tiny_model(BERT, vocab_size=len(tokenizer))
    whole = sum(parameter.numel() for parameter in model.parameters())
    kept = collab.keep_tokens(collab.Checkpoint(model, tokenizer), USED)
    calibration = collab.calibrate(kept, USED * 4)
    with pytest.raises(collab.errors.BudgetError, match=r"params=0\.05 cannot be reached") as caught:
        collab.compress(kept, collab.CompressionConfig(params=0.05), calibration)
    assert "leave out tokens" not in str(caught.value)
    least = float(str(caught.value).split("smallest, ")[1].split(" is left")[0])
    smallest = collab.compress(kept, collab.CompressionConfig(params=least + 0.01), calibration)
    assert count_parameters(smallest.model) / whole == pytest.approx(least, abs=0.011)
