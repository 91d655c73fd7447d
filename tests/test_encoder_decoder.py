"""Encoders with decoders: three kinds of attention, generation with every cache, pairs of sources and targets."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from processes import run
from reload import outputs_without_collab
from sacrebleu.metrics import BLEU
from tiny import (
    BY_TYPE,
    FORMS,
    KINDS,
    PAIRS,
    SENTENCES,
    SEQ2SEQ,
    WORDS,
    Row,
    batches,
    check_calibration_is_closer,
    converted,
    every_form,
    full_rank,
    largest_difference,
    often,
    outputs,
    random_model,
    save_with_tokenizer,
    tiny_model,
)
from transformers import AutoModel, AutoModelForSeq2SeqLM, BertTokenizerFast, GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.models.auto import modeling_auto

import collab
from collab.data.audio import Recording
from collab.data.features import source_features
from collab.errors import CalibrationError, CollabError, ConfigurationError, DataError
from collab.figures.heads import draw_attention
from collab.models.cache import CacheBytes, cache_bytes
from collab.models.families import collaborative_layers
from collab.models.inputs import probe_inputs
from collab.models.layers import attention_layers

H, D = 4, 32


def generator_of(row: Row, **changes: object) -> PreTrainedModel:
    """A row's model that generates."""
    tables = (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING)
    native_class = next(table[row.config_class] for table in tables if row.config_class in table)
    return random_model(native_class, row.config(**changes))


def marian(**changes: object) -> PreTrainedModel:
    return generator_of(BY_TYPE["marian"], **changes)


def marian_from_scratch(form: str, rank: int) -> PreTrainedModel:
    row = BY_TYPE["marian"]
    config = row.family.config_class(**row.values, collab_layers=[{"form": form, "rank": rank}])
    return row.family.base(config)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A file of sources and targets."""
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in [("en", "de"), *PAIRS]))
    return tmp_path / "pairs.tsv"


def written(model: PreTrainedModel, **how: object) -> list[list[int]]:
    """What a model writes, the second source padded."""
    sources = {name: value for name, value in probe_inputs(model).items() if not name.startswith("decoder")}
    model.generation_config.max_length = None  # Whisper's is set, and would clash
    return model.generate(**sources, max_new_tokens=7, do_sample=False, **how).tolist()


def test_targets_that_a_model_writes_are_within_its_positions(tokenizer: object) -> None:
    """Whatever its generation config says of length and form."""
    model = generator_of(BY_TYPE["bart"], vocab_size=len(WORDS))
    model.generation_config.max_new_tokens = 100
    model.generation_config.return_dict_in_generate = True
    features = source_features(model, tokenizer, ["a b c", "d e"])
    assert all(0 < len(feature["decoder_input_ids"]) <= 40 for feature in features)


@pytest.mark.parametrize(
    "number",
    often(range(len(SEQ2SEQ)), {"bart", "marian", "t5", "whisper"}, lambda number: SEQ2SEQ[number].model_type),
)
def test_generation_is_that_of_the_original_and_the_same_with_every_cache(number: int) -> None:
    native = generator_of(SEQ2SEQ[number])
    for rank in (full_rank(native), 7):
        model = converted(native, rank, FORMS[number % 3])
        for beams in (1, 3):
            plain = written(model, use_cache=False, num_beams=beams)
            for implementation in ("dynamic", "static"):
                assert written(model, cache_implementation=implementation, num_beams=beams) == plain
            if rank != 7:
                assert plain == written(native, num_beams=beams)


@every_form
@pytest.mark.parametrize("content", ["exact", "folded"])
def test_a_cache_holds_one_key_for_all_heads(form: str, content: str) -> None:
    model = converted(tiny_model(BY_TYPE["bart"]), 9, form, content=content)
    cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    with torch.no_grad():
        model(**probe_inputs(model), past_key_values=cache, use_cache=True)
    width = 9 + (H if content == "exact" else 0)
    for part, length in ((cache.self_attention_cache, 5), (cache.cross_attention_cache, 8)):
        assert [tuple(layer.keys.shape) for layer in part.layers] == [(2, 1, length, width)] * 2
        assert [tuple(layer.values.shape) for layer in part.layers] == [(2, H, length, D // H)] * 2
    held = 2 * 4 * width, 2 * 4 * D  # two layers of float32, for a token of the decoder and for one of the encoder
    assert cache_bytes(model) == CacheBytes(*held, "float32", *held)


@every_form
@pytest.mark.parametrize("content", ["exact", "folded"])
@pytest.mark.parametrize("rank", [8, 10])  # heads of equal width in the concat form, and of others
def test_a_token_written_alone_is_computed_as_among_others(form: str, content: str, rank: int) -> None:
    model = converted(marian(), rank, form, content=content)
    inputs = probe_inputs(model)
    inputs.pop("decoder_attention_mask")
    tokens, cache, logits = inputs.pop("decoder_input_ids"), None, []
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=tokens).logits
        for token in tokens.split(1, dim=1):
            output = model(**inputs, decoder_input_ids=token, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits.append(output.logits)
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("model_type", ["bart", "t5", "whisper"])
def test_plans_count_what_a_conversion_then_caches(model_type: str) -> None:
    native = generator_of(BY_TYPE[model_type])
    plan = collab.plan(native, fractions=(0.5,))
    assert plan.cache == cache_bytes(native)
    for option in plan.options:
        assert cache_bytes(converted(native, option.rank, option.form)) == option.cache


def test_every_attention_is_reported_by_its_kind() -> None:
    native = marian()
    for model in (native, converted(native, [3, 4, 5, 6, 7, 8])):
        assert [layer.kind for layer in collab.inspect(model).layers] == KINDS
    assert [layer.rank for layer in collab.inspect(model).layers] == [3, 4, 5, 6, 7, 8]
    assert [layer["rank"] for layer in model.config.collab_layers] == [3, 4, 5, 6, 7, 8]
    assert [spectrum.kind for spectrum in collab.plan(native, fractions=(0.5,)).spectra] == KINDS
    assert collab.inspect(native).passes == 1


def test_cross_attention_has_the_moments_of_both_sequences() -> None:
    """Queries are the decoder's states and keys the encoder's; those of padding do not count."""
    native = marian()
    inputs = batches(native, 2)
    moments = collab.calibrate(native, inputs).moments
    kinds = {layer.name: layer.kind for layer in collab.inspect(native).layers}
    seen = {"encoder": 8 + 4, "decoder": 5 + 3 - 1, "cross": 5 + 3 - 1}  # tokens of a batch
    assert {moments[name].tokens for name, kind in kinds.items() if kind == "encoder"} == {seen["encoder"]}
    assert {moments[name].tokens for name, kind in kinds.items() if kind != "encoder"} == {seen["decoder"]}
    padded = [dict(batch) for batch in inputs]
    for batch in padded:  # what stands in the place of padding changes nothing
        for name in ("input_ids", "decoder_input_ids"):
            mask = batch["attention_mask" if name == "input_ids" else "decoder_attention_mask"]
            batch[name] = torch.where(mask.bool(), batch[name], torch.full_like(batch[name], 7))
    again = collab.calibrate(native, padded).moments
    for name, layer in moments.items():
        for field in ("query_covariance", "key_covariance", "head_weight"):
            torch.testing.assert_close(getattr(again[name], field), getattr(layer, field), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("data", often(["synthetic", "pairs", "sources"], {"pairs"}))
def test_calibration_is_closer_than_the_weights_alone(data: str, tokenizer: BertTokenizerFast) -> None:
    check_calibration_is_closer(marian(), data, tokenizer)


@pytest.mark.parametrize("padding", [-100, 1])
def test_padding_of_targets_counts_for_nothing(padding: int) -> None:
    """Whether a batch says so by a mask, by its labels, or not at all."""
    native = marian()
    batch = probe_inputs(native) | {"decoder_attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])}
    labels = torch.tensor([[7, 8, 9, 4, 2], [7, 9, 2, padding, padding]])
    start = native.config.decoder_start_token_id
    batch["decoder_input_ids"] = torch.tensor([[start, 7, 8, 9, 4], [start, 7, 9, 1, 1]])
    read = {"decoder_input_ids", "decoder_attention_mask"}
    rest = {name: value for name, value in batch.items() if name not in read}
    unmasked = rest | {"decoder_input_ids": batch["decoder_input_ids"]}
    expected = collab.calibrate(native, [batch] * 2).moments
    for given in ([rest | {"labels": labels}] * 2, lambda model: model(**rest, labels=labels)):
        for name, moments in collab.calibrate(native, given).moments.items():
            torch.testing.assert_close(moments.key_covariance, expected[name].key_covariance)
            assert moments.tokens == expected[name].tokens
    assert {name: moments.tokens for name, moments in collab.calibrate(native, [unmasked] * 2).moments.items()} == {
        name: moments.tokens for name, moments in expected.items()
    }


def test_sources_alone_are_answered_by_the_model(tokenizer: BertTokenizerFast) -> None:
    """Its decoder then reads what it writes greedily, without the end of the text."""
    native = marian()
    batch = collab.calibrate(collab.Checkpoint(native, tokenizer), SENTENCES[:4]).held_out[0]
    ids, mask = batch["decoder_input_ids"], batch["decoder_attention_mask"]
    answer = native.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=False, max_length=40
    )
    assert (
        ids[0][mask[0].bool()].tolist() == [token for token in answer[0].tolist() if token != 3][: int(mask[0].sum())]
    )


def test_recordings_are_answered_by_the_model() -> None:
    native = generator_of(BY_TYPE["whisper"], eos_token_id=3)

    class Extractor:
        sampling_rate = 16_000

        def __call__(self, waveform: object, **options: object) -> dict[str, torch.Tensor]:
            return {"input_features": torch.randn(1, 8, 18)}

    rows = [Recording(np.zeros(100, dtype=np.float32), 16_000)] * 8
    calibration = collab.calibrate(collab.Checkpoint(native, Extractor()), rows)
    assert all(not moments.unknown for moments in calibration.moments.values())
    assert all(int(batch["decoder_input_ids"][0, 0]) == 1 for batch in calibration.held_out)


def test_every_kind_of_attention_is_refined() -> None:
    native = marian()
    options = collab.RefineOptions(steps=20)
    refinement = collab.refine(converted(native, 8), native, batches(native, 16), options=options)
    assert len(refinement.report.layers) == len(KINDS)
    improved = {kind for kind, layer in zip(KINDS, refinement.report.layers.values(), strict=True) if layer.kept}
    assert improved == set(KINDS)


def test_healing_on_sources_alone_is_on_answers_of_the_original(
    tokenizer: BertTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = marian()
    model = converted(native, 2)
    written_by = []
    generate = type(native).generate
    monkeypatch.setattr(
        GenerationMixin, "generate", lambda self, **how: written_by.append(self) or generate(self, **how)
    )
    options = collab.HealOptions(run=collab.RunOptions(steps=1, device="cpu"))
    collab.heal(collab.Checkpoint(model, tokenizer), native, [source for source, _ in PAIRS], options=options)
    assert written_by
    assert all(each is native for each in written_by)


@pytest.mark.exhaustive
def test_attention_maps_of_every_kind(tokenizer: BertTokenizerFast, tmp_path: Path) -> None:
    """A map has a row for each token that queries, of the answer in the decoder, and a column for each key."""
    native = marian()
    files = draw_attention(collab.Checkpoint(native, tokenizer), ["a b c d e f g a b c d e f g"], tmp_path)
    width, height = {}, {}
    for layer, file in zip(attention_layers(native), files, strict=True):
        with Image.open(file) as image:
            width[layer.kind], height[layer.kind] = image.size
    assert width["cross"] == width["encoder"]
    assert height["cross"] == height["decoder"] != height["encoder"]


def test_healing_says_nothing_of_tied_weights(
    tokenizer: BertTokenizerFast, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    native = marian()
    options = collab.HealOptions(run=collab.RunOptions(steps=2))
    transformers_logger = logging.getLogger("transformers")
    propagates, transformers_logger.propagate = transformers_logger.propagate, True
    try:
        collab.heal(collab.Checkpoint(converted(native, 6), tokenizer), native, PAIRS, options=options)
    finally:
        transformers_logger.propagate = propagates
    assert "missing keys" not in caplog.text
    assert "Writing" not in capsys.readouterr().err


def test_healing_on_pairs_brings_the_answers_closer(tokenizer: BertTokenizerFast) -> None:
    native = marian()
    model = converted(native, 6)
    settings = replace(collab.HealOptions().run, steps=20, batch_size=8, device="cpu")
    healing = collab.heal(
        collab.Checkpoint(model, tokenizer), native, PAIRS, options=collab.HealOptions(samples=40, run=settings)
    ).report
    assert healing.improved
    assert healing.after["kl"] < healing.before["kl"]


@pytest.mark.parametrize("model_type", ["whisper", "bart"])
def test_a_prompt_is_taken_as_in_the_original(model_type: str) -> None:
    """Whisper's as it is; to others' the start token is added where it is missing."""
    native = generator_of(BY_TYPE[model_type], eos_token_id=3)
    native.generation_config.suppress_tokens = native.generation_config.begin_suppress_tokens = None
    inputs = probe_inputs(native) | {"decoder_input_ids": torch.tensor([[7, 20, 21], [8, 9, 22]])}
    inputs.pop("decoder_attention_mask")
    expected, actual = (
        GenerationMixin.generate(model, **inputs, max_new_tokens=4, do_sample=False, eos_token_id=None).tolist()
        for model in (native, converted(native, 1.0))
    )
    assert actual == expected
    assert len(actual[0]) == (7 if model_type == "whisper" else 8)


@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5", "marian"])
def test_offloaded_weights(model_type: str) -> None:
    accelerate = pytest.importorskip("accelerate", reason="the train extra is not installed")
    model = converted(tiny_model(BY_TYPE[model_type]), 9)
    inputs = probe_inputs(model)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        offloaded = accelerate.cpu_offload(model, torch.device("cpu"))
        torch.testing.assert_close(offloaded(**inputs).last_hidden_state, expected)


class TestFromScratch:
    @every_form
    @pytest.mark.parametrize("rank", [8, 128])
    @torch.no_grad()
    def test_scores_start_with_the_variance_of_the_original(self, form: str, rank: int) -> None:
        row = BY_TYPE["marian"]
        values = {**row.values, "d_model": 128, "init_std": 0.1, "collab_layers": [{"form": form, "rank": rank}]}
        x, variances = torch.randn(64, 128), {"cross": [], "encoder": [], "decoder": []}
        for seed in range(4):
            torch.manual_seed(seed)
            model = row.family.base(row.family.config_class(**values))
            for layer in collaborative_layers(model).values():
                scores = layer.queries(x[None]) @ layer.keys(x[None]).mT * layer.scaling  # (1, H, T, S)
                variances[layer.kind].append(scores.var())
                assert not layer.content_bias.weight.any()
        expected = (128 * 0.1**2) ** 2  # d products of a query's and a key's dimension, over √d
        for kind, measured in variances.items():
            assert torch.stack(measured).mean().item() == pytest.approx(expected, rel=0.15), kind

    def test_saved_weights_come_back_as_they_were(self, tmp_path: Path) -> None:
        """And are not scaled again, as new ones of the concat form are."""
        model = marian_from_scratch("concat", 8)
        model.save_pretrained(tmp_path)
        state = type(model).from_pretrained(tmp_path).state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


class TestReload:
    @pytest.mark.parametrize("model_type", ["marian", "t5"])
    def test_three_ways(self, model_type: str, tmp_path: Path) -> None:
        native = generator_of(BY_TYPE[model_type])
        model = converted(native, 7)
        model.save_pretrained(tmp_path / "out")
        expected = outputs(model)
        for loader in (AutoModelForSeq2SeqLM, type(model)):
            assert largest_difference(expected, outputs(loader.from_pretrained(tmp_path / "out"))) < 1e-5
        job = {"folder": tmp_path / "out", "auto_class": "AutoModelForSeq2SeqLM", "inputs": probe_inputs(model)}
        actual = outputs_without_collab([job], tmp_path)[0]
        assert largest_difference(expected, actual) < 1e-5

    def test_an_encoder_alone_is_still_one(self, tmp_path: Path) -> None:
        """As version 0.1.0 wrote T5's and Whisper's: AutoModel follows the architecture that the config names."""
        native = random_model(transformers.T5EncoderModel, BY_TYPE["t5"].config())
        model = converted(native, 7)
        assert len(model.config.collab_layers) == 2
        model.save_pretrained(tmp_path / "out")
        reloaded = AutoModel.from_pretrained(tmp_path / "out")
        assert type(reloaded) is type(model)
        assert largest_difference(outputs(model), outputs(reloaded)) < 1e-5
        job = {"folder": tmp_path / "out", "auto_class": "AutoModel", "inputs": probe_inputs(model)}
        assert largest_difference(outputs(model), outputs_without_collab([job], tmp_path)[0]) < 1e-5

    @pytest.mark.parametrize("model_type", ["bart", "t5", "whisper"])
    def test_a_part_is_not_saved_alone(self, model_type: str, tmp_path: Path) -> None:
        """Its config is that of the whole, with which it would not load."""
        model = converted(tiny_model(BY_TYPE[model_type]), 8)
        with pytest.raises(ValueError, match="is a part of a converted model"):
            model.get_encoder().save_pretrained(tmp_path / "encoder")
        assert not (tmp_path / "encoder").exists()

    def test_wrong_number_of_layers_is_refused(self) -> None:
        row = BY_TYPE["marian"]
        with pytest.raises(ValueError, match="2 collab_layers, but the model has 6"):
            row.family.base(row.family.config_class(**row.values, collab_layers=[{"form": "cp", "rank": 6}] * 2))


class TestOtherVerbs:
    def test_expands_to_the_original(self) -> None:
        native = marian()
        model = converted(native, 8, "concat", content="folded")
        expanded = collab.expand(model).model
        assert type(expanded) is type(native)
        assert largest_difference(outputs(model), outputs(expanded)) < 1e-5

    def test_heads_are_scored_and_pruned_in_every_kind(self, tokenizer: BertTokenizerFast) -> None:
        native = marian()
        scores = collab.score_heads(collab.Checkpoint(native, tokenizer), PAIRS[:8])
        assert [len(values) for values in scores.importance("gradient").values()] == [H] * 6
        keep = {layer.name: [0, 2] for layer in collab.inspect(native).layers if layer.kind == "cross"}
        pruned = collab.prune(native, keep).model
        assert [layer.heads for layer in collab.inspect(pruned).layers] == [4, 4, 4, 2, 4, 2]
        assert written(pruned) == written(pruned, use_cache=False)

    def test_pruned_and_expanded_times_of_words_are_those_of_the_same_heads(self) -> None:
        native = generator_of(BY_TYPE["whisper"], decoder_layers=2)
        native.generation_config.alignment_heads = [[0, 1], [0, 3], [1, 2]]
        first, second = (layer.name for layer in attention_layers(native) if layer.kind == "cross")
        pruned = collab.prune(native, {first: [0, 3], second: [1, 2, 3]}).model
        assert pruned.generation_config.alignment_heads == [[0, 1], [1, 1]]
        again = collab.prune(pruned, {first: [3], second: [1, 3]}).model
        assert again.generation_config.alignment_heads == [[0, 0]]
        assert collab.expand(pruned).model.generation_config.alignment_heads == [[0, 3], [1, 2]]
        assert collab.prune(native, {first: [0], second: [0]}).model.generation_config.alignment_heads is None
        assert native.generation_config.alignment_heads == [[0, 1], [0, 3], [1, 2]]

    def test_a_layer_without_heads_generates(self) -> None:
        pruned = collab.prune(marian(), {"model.decoder.layers.0.encoder_attn": []}).model
        assert written(pruned) == written(pruned, use_cache=False)


class TestTranslation:
    """The task of pairs: by teacher forcing, and by what the model writes."""

    TASK = collab.task_named("translation")

    @pytest.fixture
    def source(self, pairs: Path) -> collab.DataSource:
        return collab.DataSource(str(pairs), ("en", "de"))

    def test_evaluates_as_transformers_and_sacrebleu_do(
        self, source: collab.DataSource, tokenizer: BertTokenizerFast
    ) -> None:
        native = marian(eos_token_id=3)
        examples = collab.read_examples(source, self.TASK)
        metrics = collab.evaluate(collab.Checkpoint(native, tokenizer), examples, self.TASK).report.metrics
        losses, texts = [], []
        for text, target in examples.texts:
            inputs = {name: tokenizer(text, return_tensors="pt")[name] for name in ("input_ids", "attention_mask")}
            labels = tokenizer(target, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                losses += [float(native(**inputs, labels=labels).loss)] * labels.shape[1]  # of every token
                ids = native.generate(**inputs, max_length=40)
            texts.append(tokenizer.decode(ids[0], skip_special_tokens=True))
        assert metrics["loss"]["value"] == pytest.approx(np.mean(losses), rel=1e-5)
        targets = [target for _, target in examples.texts]
        assert metrics["bleu"]["value"] == pytest.approx(BLEU().corpus_score(texts, [targets]).score, abs=1e-9)
        assert 0 <= metrics["accuracy"]["value"] <= 1

    def test_beside_the_original(self, source: collab.DataSource, tmp_path: Path) -> None:
        folder = save_with_tokenizer(marian(), tmp_path / "model")
        config = collab.ConversionConfig(rank=1.0, content="folded", refine="none", compare=False)
        collab.checkpoints.convert(str(folder), tmp_path / "out", config)
        columns = ("--text-column", "en", "--text-column", "de")
        done = run("evaluate", tmp_path / "out", "--against", folder, "--data", source.path, *columns, "--json")
        assert done.exit_code == 0, done.output
        record = json.loads(done.stdout)
        assert record["task"] == "translation"
        assert record["metrics"]["bleu"]["value"] == record["against"]["metrics"]["bleu"]["value"]
        assert record["against"]["hidden_cosine"] == pytest.approx([1.0] * 4, abs=1e-5)  # two layers on each side
        assert record["against"]["agreement"]["kl"] < 1e-6

    def test_finetunes(self, source: collab.DataSource, tmp_path: Path) -> None:
        folder = save_with_tokenizer(marian(), tmp_path / "model")
        columns = ("--text-column", "en", "--text-column", "de")
        settings = ("--steps", 30, "--batch-size", 8, "--learning-rate", 3e-3, "--evaluations", 2, "--json")
        rows = ("--train", source.path, "--eval", source.path)
        done = run("finetune", folder, tmp_path / "out", "--task", "translation", *rows, *columns, *settings)
        assert done.exit_code == 0, done.output
        record = json.loads(done.stdout)
        assert record["metrics"]["loss"]["value"] < record["before"]["loss"]
        assert {"bleu", "loss", "accuracy"} == record["metrics"].keys()
        assert "translation" in (tmp_path / "out" / "README.md").read_text()

    def test_scores_heads(self, source: collab.DataSource, tokenizer: BertTokenizerFast) -> None:
        loaded = collab.Checkpoint(marian(), tokenizer)
        options = collab.ScoreOptions(scores=("gradient", "ablation"), ablation_samples=8)
        scores = collab.score_heads(loaded, source, task=self.TASK, options=options)
        assert len(scores.scores["ablation"]) == 6
        assert "loss" in scores.degradation_name

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "hold the sources and their targets"),
            (("--text-column", "en"), "Every source needs a target here"),
            (
                ("--task", "classification", "--text-column", "en", "--label-column", "de"),
                "has no AutoModelForSequence",
            ),
            (("--task", "similarity", "--text-column", "en", "--text-column", "de", "--label-column", "n"), "decoder"),
        ],
    )
    def test_bad_input(self, pairs: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
        folder = save_with_tokenizer(marian(), tmp_path / "model")
        lines = pairs.read_text().splitlines()
        pairs.write_text("\n".join([f"{lines[0]}\tn", *(f"{line}\t1.5" for line in lines[1:])]))
        done = run("evaluate", folder, "--data", pairs, *arguments)
        assert done.exit_code in (1, 2)
        assert message in " ".join(done.stderr.split())


class TestBadInput:
    def test_rows_of_three_texts(self, tokenizer: BertTokenizerFast) -> None:
        with pytest.raises(DataError, match="row 2 is 3 parts"):
            collab.calibrate(collab.Checkpoint(marian(), tokenizer), [PAIRS[0], ("a", "b", "c")])

    def test_the_same_column_twice(self) -> None:
        with pytest.raises(ConfigurationError, match="two different columns, not 'en' twice"):
            collab.DataSource("pairs.tsv", ("en", "en"))

    def test_a_pair_without_a_target(self, tokenizer: BertTokenizerFast) -> None:
        with pytest.raises(DataError, match="row 3 has a source without a target: 'b c'"):
            collab.calibrate(collab.Checkpoint(marian(), tokenizer), [*PAIRS[:2], ("b c", ""), PAIRS[3]])

    @pytest.mark.parametrize(("row", "message"), [("b c\t", "'b c', but none in 'de'"), ("\tb c", "but none in 'en'")])
    def test_a_file_with_a_pair_without_a_target(
        self, row: str, message: str, tokenizer: BertTokenizerFast, tmp_path: Path
    ) -> None:
        rows = [f"{source}\t{target}" for source, target in PAIRS[:4]]
        rows[1:1] = ["\t", row]  # an empty row counts, but is no mistake
        (tmp_path / "pairs.tsv").write_text("\n".join(["en\tde", *rows]))
        source = collab.DataSource(str(tmp_path / "pairs.tsv"), columns=("en", "de"))
        with pytest.raises(DataError, match=f"row 3 of .*pairs.tsv has text in .*{message}"):
            collab.calibrate(collab.Checkpoint(marian(), tokenizer), source)
        native = marian()
        model = converted(native, 6)
        with pytest.raises(DataError, match="Give every source a target"):
            collab.heal(collab.Checkpoint(model, tokenizer), native, source)
        alone = replace(source, columns=("en" if row.startswith("b") else "de",))
        assert collab.calibrate(collab.Checkpoint(marian(), tokenizer), alone).summary["rows"] == 5

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"input_ids": 41, "attention_mask": 41}, "index out of range.*at most 40 tokens, below"),
            ({"decoder_input_ids": 41, "decoder_attention_mask": 41}, "index out of range.*at most 40 tokens below"),
            ({"decoder_input_ids": 0, "decoder_attention_mask": 0}, "The decoder needs decoder_input_ids"),
        ],
    )
    def test_batches_that_do_not_fit(self, change: dict[str, int], message: str) -> None:
        rows = batches(marian(), 2)
        for batch in rows:
            batch |= {name: torch.ones(2, length, dtype=torch.long) for name, length in change.items() if length}
            for name in [name for name, length in change.items() if not length]:
                del batch[name]
        with pytest.raises(CalibrationError, match=message):
            collab.calibrate(marian(), rows)

    def test_sources_alone_for_a_model_without_a_head(self, tokenizer: BertTokenizerFast) -> None:
        with pytest.raises(DataError, match="MarianModel has no head to answer with, so its decoder needs targets"):
            collab.calibrate(collab.Checkpoint(tiny_model(BY_TYPE["marian"]), tokenizer), SENTENCES[:4])

    def test_a_tokenizer_without_a_target_language(self, tokenizer: BertTokenizerFast) -> None:
        class Multilingual:
            tgt_lang = None

            def __call__(self, *given: object, **options: object) -> object:
                return tokenizer(*given, **options)

        with pytest.raises(DataError, match="no target language"):
            collab.calibrate(collab.Checkpoint(marian(), Multilingual()), PAIRS[:4])

    def test_a_tokenizer_without_targets(self) -> None:
        def tokenize(texts: list[str], pairs: None = None, truncation: bool = True, **options: object) -> object:
            return {"input_ids": [[5, 6]] * len(texts), "attention_mask": [[1, 1]] * len(texts)}

        with pytest.raises(DataError, match="does not take text_target"):
            collab.calibrate(collab.Checkpoint(marian(), tokenize), PAIRS[:4])

    def test_a_tokenizer_with_more_targets_than_the_decoder_knows(self, tokenizer: BertTokenizerFast) -> None:
        native = marian(decoder_vocab_size=6, share_encoder_decoder_embeddings=False, tie_word_embeddings=False)
        with pytest.raises(DataError, match="the decoder's vocabulary ends at 5"):
            collab.calibrate(collab.Checkpoint(native, tokenizer), PAIRS[:4])

    def test_targets_longer_than_the_positions_are_cut(self, tokenizer: BertTokenizerFast) -> None:
        rows = [(source, " ".join("a" * 60)) for source in SENTENCES[:4]]
        batch = collab.calibrate(collab.Checkpoint(marian(), tokenizer), rows).held_out[0]
        assert batch["decoder_input_ids"].shape[1] == 40

    def test_a_prompt_longer_than_the_positions_fails_as_in_the_original(self) -> None:
        native = marian()
        for model in (native, converted(native, 8)):
            with pytest.raises(IndexError), torch.no_grad():
                model(input_ids=torch.tensor([[5, 6]]), decoder_input_ids=torch.full((1, 41), 5))

    @pytest.mark.parametrize("beams", [1, 3])
    def test_a_static_cache_that_is_full_fails_as_in_the_original(self, beams: int) -> None:
        native = marian()
        for model in (native, converted(native, 8)):
            own, other = (StaticCache(config=model.config, max_cache_len=length) for length in (4, 8))
            with pytest.raises(IndexError, match="out of bounds"):
                written(model, past_key_values=EncoderDecoderCache(own, other), num_beams=beams)

    def test_no_decoder_start_token(self, tokenizer: BertTokenizerFast) -> None:
        native = tiny_model(BY_TYPE["mbart"], decoder_start_token_id=None)
        with pytest.raises(CollabError, match="decoder_start_token_id"):
            collab.calibrate(collab.Checkpoint(native, tokenizer), PAIRS[:4])


class TestCommands:
    @pytest.mark.parametrize("model_type", often(["marian", "bart"], {"bart"}))
    def test_convert_inspect_and_plan(self, model_type: str, pairs: Path, tmp_path: Path) -> None:
        folder = save_with_tokenizer(generator_of(BY_TYPE[model_type]), tmp_path / "model")
        given = ("--calibration", pairs, "--text-column", "en", "--text-column", "de")
        done = run("convert", folder, tmp_path / "out", "--rank", 8, "--refine", 4, *given)
        assert done.exit_code == 0, done.output
        shown = run("inspect", tmp_path / "out")
        assert shown.exit_code == 0, shown.output
        text = " ".join(shown.stdout.split())
        assert all(kind in text for kind in ("encoder", "decoder", "cross"))
        held = f"{2 * 4 * (8 + H)} {{}} {2 * 4 * D} {{}} for each token of the {{}}"  # two layers of 32-bit numbers
        assert held.format("bytes of keys and", "of values", "decoder") in text
        assert held.format("and", "", "encoder").replace("  ", " ") in text
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
        assert collab.checkpoints.inspect(str(tmp_path / "out")) == replace(
            collab.inspect(again), history=collab.checkpoints.inspect(str(tmp_path / "out")).history
        )
        shown = run("plan", folder, *given)
        assert shown.exit_code == 0, shown.output
        text = " ".join(shown.stdout.split())
        assert f"each token (the original's: {2 * 4 * D}); cross keys" in text
        assert "32 40 cross form rank tokens tokens keys keys a step" in text  # what the model takes, instead of more
        assert written(again) == written(again, use_cache=False)

    @pytest.mark.parametrize("option", ["--calibration", "--heal"])
    def test_a_source_without_a_target(self, option: str, pairs: Path, tmp_path: Path) -> None:
        folder = save_with_tokenizer(marian(), tmp_path / "model")
        pairs.write_text(pairs.read_text() + "b c\t\n")
        columns = ("--text-column", "en", "--text-column", "de")
        done = run("convert", folder, tmp_path / "out", "--rank", 8, "--refine", "none", option, pairs, *columns)
        assert done.exit_code == 1
        assert "has text in 'en', 'b c', but none in 'de'" in " ".join(done.output.split())
        assert not (tmp_path / "out").exists()

    def test_synthetic_by_default(self, tmp_path: Path) -> None:
        folder = save_with_tokenizer(marian(), tmp_path / "model")
        done = run("convert", folder, tmp_path / "out", "--rank", 8, "--refine", "none")
        assert done.exit_code == 0, done.output
        assert (tmp_path / "out" / "collab_marian.py").is_file()
