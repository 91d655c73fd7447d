"""Calibration: the moments against sums written out, data of every kind, and bad data."""

from __future__ import annotations

import csv
import json
import wave
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tiny import (
    BERT,
    BY_TYPE,
    LETTERS,
    SPECIAL,
    Row,
    batches,
    changed,
    every_head_of_few_kinds,
    few_kinds,
    often,
    random_model,
    save_tokenizer,
    state,
    tiny_model,
)
from torch import Tensor
from transformers import BertTokenizer, PreTrainedModel

import collab
from collab.data.rows import read_rows
from collab.decomposition import FORMS
from collab.models.inputs import probe_inputs
from collab.models.layers import native_layers

WORDS = (*SPECIAL, "[unused0]", *LETTERS)
SENTENCES = [" ".join("abcdefghij"[i % 7 : i % 7 + 1 + i % 4]) for i in range(24)]
FEW = collab.CalibrationOptions(samples=24)


@pytest.fixture
def tokenizer(tmp_path: Path) -> BertTokenizer:
    save_tokenizer(tmp_path / "tokenizer", WORDS)
    return BertTokenizer.from_pretrained(tmp_path / "tokenizer")


def hooks(model: PreTrainedModel) -> list[object]:
    """Our hooks on a model; transformers leaves some of its own."""
    return [
        hook
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if hook.__module__.startswith("collab")
    ]


def layer_names(model: PreTrainedModel) -> list[str]:
    return list(native_layers(model))


class TestMoments:
    @pytest.mark.parametrize("answers", often(["states", "classes", "labels"], {"classes"}))
    def test_against_the_definition(self, answers: str) -> None:
        """Finite differences: how the output moves in a direction when a score does, for every head and pair."""
        if answers == "states":
            model = tiny_model(BERT, num_hidden_layers=1)
        else:
            problem = {"classes": "single_label_classification", "labels": "multi_label_classification"}[answers]
            changes = {"num_hidden_layers": 1, "num_labels": 3, "problem_type": problem}
            model = random_model(transformers.BertForSequenceClassification, BERT.config(**changes))
        inputs = {name: value[:1] for name, value in probe_inputs(model).items()}
        calibration = collab.calibrate(model, [inputs] * 400)
        moments = calibration.moments[layer_names(model)[0]]

        states: dict[str, Tensor] = {}
        layer = model.base_model.encoder.layer[0].attention.self
        layer.register_forward_pre_hook(lambda module, args: states.update(x=args[0].detach()))
        model.set_attn_implementation("eager")
        shift = torch.zeros(1, 4, 8, 8, dtype=torch.float32, requires_grad=True)

        def shifted(module, query, key, value, mask, scaling, dropout=0.0, **kwargs):
            scores = query @ key.mT * scaling + shift
            return (scores.softmax(-1) @ value).transpose(1, 2), None

        transformers.AttentionInterface.register("shifted", shifted)
        model.config._attn_implementation = "shifted"
        output = model(input_ids=inputs["input_ids"])[0]
        if answers == "states":  # E over Gaussian directions is the sum over coordinates
            entries = output.flatten()
        elif answers == "classes":  # and over those of classes that of the Fisher information, Σ p (e - p)(e - p)ᵀ
            p = output.detach().softmax(-1).flatten()
            entries = p.sqrt() * (output.flatten() - (p * output.flatten()).sum())
        else:
            p = output.detach().sigmoid().flatten()
            entries = (p * (1 - p)).sqrt() * output.flatten()
        x = None
        expected_key = torch.zeros(32, 32)
        expected_weight = torch.zeros(4)
        for entry in entries:
            (gradient,) = torch.autograd.grad(entry, shift, retain_graph=True)
            x = states["x"]
            u = gradient @ x.unsqueeze(1)  # (1, H, T, D)
            flat = u.transpose(0, 1).reshape(4, -1, 32)
            expected_key += (flat.mT @ flat).sum(0)
            expected_weight += flat.square().sum((1, 2))
        torch.testing.assert_close(moments.head_weight.float(), expected_weight / 8, rtol=0.25, atol=0)
        difference = (moments.key_covariance.float() - expected_key / 8).norm()
        assert difference < 0.25 * (expected_key / 8).norm()
        assert moments.tokens == 8 * len([1 for i in range(1, 401) if i % 8])

    @few_kinds
    def test_every_family(self, row: Row) -> None:
        model = tiny_model(row)
        before = state(model)
        trainable = [parameter.requires_grad for parameter in model.parameters()]
        implementation = model.config._attn_implementation
        calibration = collab.calibrate(model, batches(model))
        assert list(calibration.moments) == layer_names(model)
        for moments in calibration.moments.values():
            for matrix in (moments.query_covariance, moments.key_covariance):
                assert matrix.dtype == torch.float64
                values = torch.linalg.eigvalsh(matrix)
                assert values[0] > -1e-5 * values[-1]
                assert values[-1] > 0
            assert (moments.head_weight > 0).all()
        assert not changed(model, before)
        assert model.config._attn_implementation == implementation
        assert [parameter.requires_grad for parameter in model.parameters()] == trainable
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not hooks(model)
        conversion = collab.convert(
            model, collab.ConversionConfig(rank=8, refine="none", compare=False), calibration=calibration
        )
        assert all(layer.score_error < 1 for layer in conversion.report.layers)
        assert conversion.report.agreement["rows"] == 2

    @every_head_of_few_kinds
    def test_every_head(self, row: Row, native_class: type[PreTrainedModel]) -> None:
        model = random_model(native_class, row.config())
        if native_class is transformers.UniSpeechSatForPreTraining:  # it returns what its convolutions make
            with pytest.raises(collab.errors.CalibrationError, match="does not depend on its attention layers"):
                collab.calibrate(model, batches(model, 2))
            return
        calibration = collab.calibrate(model, batches(model, 2), options=collab.CalibrationOptions(held_out=0.5))
        assert all(moments.head_weight.isfinite().all() for moments in calibration.moments.values())
        assert calibration.held_out_moments is not None

    @pytest.mark.slow
    def test_padding_changes_nothing(self) -> None:
        model = tiny_model(BERT)
        short = {"input_ids": torch.tensor([[5, 6, 7, 8]] * 16), "attention_mask": torch.ones(16, 4, dtype=torch.long)}
        padded = {
            "input_ids": torch.tensor([[5, 6, 7, 8, 1, 1, 1]] * 16),
            "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0, 0]] * 16),
        }
        many = collab.CalibrationOptions(samples=4000)
        alone, beside = (collab.calibrate(model, [batch] * 100, options=many) for batch in (short, padded))
        for name in layer_names(model):
            first, second = alone.moments[name], beside.moments[name]
            assert first.tokens == second.tokens
            torch.testing.assert_close(first.head_weight, second.head_weight, rtol=0.2, atol=0)
            difference = (first.query_covariance - second.query_covariance).norm()
            assert difference < 0.2 * first.query_covariance.norm()

    def test_shared_layers_pool_their_passes(self) -> None:
        model = tiny_model(BY_TYPE["albert"], num_hidden_groups=1, inner_group_num=1)
        assert len(layer_names(model)) == 1
        moments = collab.calibrate(model, batches(model, 8)).moments[layer_names(model)[0]]
        assert moments.tokens == 4 * 7 * 12, "four passes over seven batches of 8 and 4 tokens"

    @pytest.mark.parametrize("name", ["bert", "deberta-v2", "eurobert"])
    def test_sums_in_files_are_those_in_memory(self, name: str, tmp_path: Path) -> None:
        model = tiny_model(BY_TYPE[name])
        rows = batches(model)
        inside, mapped = (collab.calibrate(model, rows, scratch=scratch) for scratch in (None, tmp_path))
        widths = [layer.projection("query").in_features for layer in native_layers(model).values()]
        assert sum(file.stat().st_size for file in tmp_path.glob("*/*")) >= 4 * 8 * sum(width**2 for width in widths)
        for layer, moments in mapped.moments.items():
            for field, values in moments.tensors().items():
                torch.testing.assert_close(values, inside.moments[layer].tensors()[field], rtol=1e-12, atol=0)

    @pytest.mark.slow
    def test_cross_attention_has_a_key_side_of_its_own(self) -> None:
        model = random_model(transformers.BertLMHeadModel, BERT.config(is_decoder=True, add_cross_attention=True))
        calibration = collab.calibrate(model, batches(model))
        cross, own = (calibration.moments[name] for name in layer_names(model) if "layer.0." in name and name)
        assert not torch.allclose(cross.key_covariance, own.key_covariance, rtol=0.1)
        conversion = collab.convert(
            model, collab.ConversionConfig(rank=8, refine="none", compare=False), calibration=calibration
        )
        assert conversion.report.agreement["top1"] > 0

    def test_narrow_dtypes(self) -> None:
        model = tiny_model(BERT).to(torch.bfloat16)
        calibration = collab.calibrate(model, batches(model))
        conversion = collab.convert(
            model, collab.ConversionConfig(rank=8, refine="none", compare=False), calibration=calibration
        )
        assert conversion.model.dtype == torch.bfloat16
        assert all(layer.score_error < 1 for layer in conversion.report.layers)


class TestSources:
    def test_strings_pairs_batches_and_callables(self, tokenizer: BertTokenizer) -> None:
        model = tiny_model(BERT)
        for data in (SENTENCES, list(zip(SENTENCES, SENTENCES, strict=True)), iter(SENTENCES)):
            calibration = collab.calibrate(collab.Checkpoint(model, tokenizer), data, options=FEW)
            assert calibration.summary["rows"] == 24
            assert sum(len(batch["input_ids"]) for batch in calibration.held_out) == 3
        calibration = collab.calibrate(model, lambda model: [model(**batch) for batch in batches(model)] and None)
        assert calibration.held_out_moments is not None
        assert calibration.held_out == []

    @pytest.mark.parametrize("name", ["bert", "bart"])
    def test_a_callable_may_pass_masks_by_position(self, name: str) -> None:
        model = tiny_model(BY_TYPE[name])
        ids, mask = torch.randint(5, 30, (4, 6)), torch.tensor([[1, 1, 1, 1, 0, 0]] * 4)
        more = {"decoder_input_ids": ids, "decoder_attention_mask": mask} if name == "bart" else {}
        named, placed = (
            collab.calibrate(model, lambda model, call=call: [call(model) for _ in range(8)] and None)
            for call in (
                lambda model: model(input_ids=ids, attention_mask=mask, **more),
                lambda model: model(ids, mask, *more.values()),
            )
        )
        for layer in layer_names(model):
            assert placed.moments[layer].tokens == named.moments[layer].tokens
            torch.testing.assert_close(placed.moments[layer].head_weight, named.moments[layer].head_weight)

    def test_the_batches_of_a_calibration_are_data_for_another(self, tokenizer: BertTokenizer) -> None:
        model = tiny_model(BERT)
        first = collab.calibrate(collab.Checkpoint(model, tokenizer), SENTENCES, options=FEW)
        second = collab.calibrate(model, first, options=FEW)
        assert second.summary == first.summary
        assert second.held_out == first.held_out
        for name, moments in first.moments.items():
            assert torch.equal(second.moments[name].query_covariance, moments.query_covariance)

    @pytest.mark.parametrize(
        ("native_class", "data"),
        often(
            product((transformers.BertForMaskedLM, transformers.BertForPreTraining), (SENTENCES * 8, "synthetic")),
            {"BertForMaskedLM-text"},
            lambda kind, data: f"{kind.__name__}-{data if isinstance(data, str) else 'text'}",
        ),
    )
    def test_a_masked_language_model_sees_masked_tokens(
        self, native_class: type[PreTrainedModel], data: str | list[str], tokenizer: BertTokenizer
    ) -> None:
        whole = collab.Checkpoint(tiny_model(BERT), tokenizer)
        masking = collab.Checkpoint(tiny_model(BERT, native_class), tokenizer)
        options = collab.CalibrationOptions(samples=192)
        hidden, seen = (collab.calibrate(each, data, options=options) for each in (masking, whole))
        assert hidden.summary["masked"] == 0.15
        assert "masked" not in seen.summary
        conversion = collab.convert(masking, collab.ConversionConfig(rank=8), calibration=hidden)
        assert "% of their tokens masked)" in conversion.report.summary()
        ids = torch.cat([batch["input_ids"][batch["attention_mask"].bool()] for batch in hidden.train])
        words = ids[~torch.isin(ids, torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id]))]
        # One of every row at least, which of short rows is more.
        assert 0.1 < float((words == tokenizer.mask_token_id).float().mean()) < 0.5
        assert all("labels" not in batch for batch in hidden.train)
        assert not any((batch["input_ids"] == tokenizer.mask_token_id).any() for batch in seen.train)

    def test_a_discriminator_sees_whole_rows(self, tokenizer: BertTokenizer) -> None:
        model = tiny_model(BY_TYPE["electra"], transformers.ElectraForPreTraining)
        summary = collab.calibrate(collab.Checkpoint(model, tokenizer), SENTENCES, options=FEW).summary
        assert "masked" not in summary

    def test_without_a_mask_token_nothing_is_masked(self, tokenizer: BertTokenizer) -> None:
        tokenizer.mask_token = None
        model = tiny_model(BERT, transformers.BertForMaskedLM)
        summary = collab.calibrate(collab.Checkpoint(model, tokenizer), SENTENCES, options=FEW).summary
        assert "masked" not in summary

    def test_synthetic_leaves_out_special_and_unused_tokens(self, tokenizer: BertTokenizer) -> None:
        rows = self.synthetic_rows(tokenizer)
        for ids in rows:
            assert ids[0] == 2
            assert ids[-1] == 3
            assert ids[1:-1].min() >= 6

    @pytest.mark.parametrize("padded", [True, False])
    def test_synthetic_rows_are_short_and_long(self, tokenizer: BertTokenizer, padded: bool) -> None:
        """As many tokens in rows of each length, as far as the model takes them; without a tokenizer too."""
        lengths = [len(ids) for ids in self.synthetic_rows(tokenizer if padded else None)]
        assert sorted(lengths) == [16] * 12 + [32] * 6  # 16 tokens for each of 24 samples; the model takes 40 in a row
        assert {len(ids) for ids in self.synthetic_rows(tokenizer, max_length=20)} == {16}
        assert {len(ids) for ids in self.synthetic_rows(tokenizer, max_length=9)} == {9}

    def synthetic_rows(self, tokenizer: BertTokenizer | None, max_length: int | None = None) -> list[Tensor]:
        model, rows = tiny_model(BERT), []

        def see(module: PreTrainedModel, args: tuple, kwargs: dict[str, Tensor]) -> None:
            masks = kwargs["attention_mask"].bool()
            rows.extend(ids[mask] for ids, mask in zip(kwargs["input_ids"], masks, strict=True))

        model.register_forward_pre_hook(see, with_kwargs=True)
        options = replace(FEW, max_length=max_length)
        summary = collab.calibrate(collab.Checkpoint(model, tokenizer), options=options).summary
        assert summary["source"] == "synthetic"
        assert summary["rows"] == len(rows)
        return rows

    @pytest.mark.parametrize("suffix", ["txt", "csv", "tsv", "jsonl", "parquet"])
    def test_files(self, tmp_path: Path, suffix: str) -> None:
        file = tmp_path / f"rows.{suffix}"
        rows = [{"label": str(i), "sentence": f"row, number {i}", "other": "x"} for i in range(30)]
        if suffix == "txt":
            file.write_text("\n".join(row["sentence"] for row in rows) + "\n\n")
        elif suffix == "jsonl":
            file.write_text("\n".join(json.dumps(row) for row in rows))
        elif suffix == "parquet":
            datasets = pytest.importorskip("datasets")
            datasets.Dataset.from_list(rows).to_parquet(file)
        else:
            with file.open("w", newline="") as opened:
                writer = csv.DictWriter(opened, list(rows[0]), delimiter="\t" if suffix == "tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
        expected = {row["sentence"] for row in rows}
        assert set(read_rows(collab.DataSource(str(file)), 100)) == expected
        assert len(read_rows(collab.DataSource(str(file)), 5)) == 5
        if suffix != "txt":
            pairs = read_rows(collab.DataSource(str(file), ("sentence", "other")), 100)
            assert set(pairs) == {(sentence, "x") for sentence in expected}
            with pytest.raises(collab.errors.DataError, match=r"no column 'text'; .* label, sentence, other"):
                read_rows(collab.DataSource(str(file), ("text",)), 100)

    def test_a_file_without_a_header(self, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text("first one,1\nsecond one,2\n")
        assert set(read_rows(collab.DataSource(str(tmp_path / "rows.csv"), ("0",)), 9)) == {"first one", "second one"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("text\nhello, world\n", "first row of .* has 1 columns and the second one 2"),
            ("text;label\nhello, you;1\n", "separated by semicolons"),
            ("text\tlabel\nhello\t1\n", "separated by tabs"),
        ],
    )
    def test_a_table_of_which_text_would_be_lost(self, text: str, message: str, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text(text)
        with pytest.raises(collab.errors.DataError, match=message):
            read_rows(collab.DataSource(str(tmp_path / "rows.csv")), 9)

    @pytest.mark.parametrize(
        "text", [f"text\n{'long ' * 40_000}\n", "text,label,comment\nshort,1\n", "\ntext\nshort\n"]
    )
    def test_long_texts_and_short_rows(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text(text)
        (row,) = read_rows(collab.DataSource(str(tmp_path / "rows.csv")), 9)
        assert row == text.strip("\n").split("\n")[1].partition(",")[0]

    def test_text_of_digits(self, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text("text,label\n007,1\n3.50,0\n")
        assert set(read_rows(collab.DataSource(str(tmp_path / "rows.csv")), 9)) == {"007", "3.50"}
        (tmp_path / "pairs.csv").write_text("sentence1,sentence2,label\n007,8,1\n")
        pairs = collab.read_examples(collab.DataSource(str(tmp_path / "pairs.csv")), collab.task_named("similarity"))
        assert pairs.texts == [("007", "8")]

    def test_a_single_batch_is_no_list_of_rows(self, tokenizer: BertTokenizer) -> None:
        batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
        with pytest.raises(collab.errors.DataError, match="a single mapping of input_ids"):
            collab.calibrate(collab.Checkpoint(tiny_model(BERT), tokenizer), batch, options=FEW)

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_a_tokenizer_without_padding(self, side: str, tokenizer: BertTokenizer) -> None:
        """As those of GPT-2 and Llama are published; the mask hides what rows are padded with."""
        model = tiny_model(BY_TYPE["llama"])
        tokenizer.padding_side = side
        padded = collab.calibrate(collab.Checkpoint(model, tokenizer), SENTENCES, options=FEW)
        tokenizer.pad_token = None
        without = collab.calibrate(collab.Checkpoint(model, tokenizer), SENTENCES, options=FEW)
        assert without.summary == padded.summary
        for name, moments in without.moments.items():
            torch.testing.assert_close(moments.key_covariance, padded.moments[name].key_covariance)

    def test_images(self, tmp_path: Path) -> None:
        image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
        for i in range(4):
            image.new("RGB", (20, 20), (i * 60, 10, 200)).save(tmp_path / f"{i}.png")
        model = tiny_model(BY_TYPE["vit"], transformers.ViTForImageClassification)
        processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
        calibration = collab.calibrate(collab.Checkpoint(model, processor), collab.DataSource(str(tmp_path)))
        assert calibration.summary["rows"] == 4
        with pytest.raises(collab.errors.DataError, match="no synthetic data for images"):
            collab.calibrate(model)

    def test_recordings(self, tmp_path: Path) -> None:
        for number in range(3):
            with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
                file.setnchannels(1 + number % 2)
                file.setsampwidth(2)
                file.setframerate(16000)
                file.writeframes((np.random.default_rng(number).normal(0, 3000, 320)).astype("<i2").tobytes())
        model = tiny_model(BY_TYPE["wav2vec2"], transformers.Wav2Vec2ForSequenceClassification)
        source = collab.DataSource(str(tmp_path))
        extractor = transformers.Wav2Vec2FeatureExtractor()
        assert collab.calibrate(collab.Checkpoint(model, extractor), source).summary["rows"] == 3
        with pytest.raises(collab.errors.DataError, match="has 16000 samples per second, and the model takes 8000"):
            collab.calibrate(
                collab.Checkpoint(model, transformers.Wav2Vec2FeatureExtractor(sampling_rate=8000)), source
            )
        model.save_pretrained(tmp_path / "model")  # with an extractor whose class only the model's type tells
        settings = {name: getattr(extractor, name) for name in ("feature_size", "sampling_rate", "padding_value")}
        (tmp_path / "model" / "preprocessor_config.json").write_text(json.dumps(settings))
        config = collab.ConversionConfig(rank=8, refine="none", compare=False)
        collab.checkpoints.convert(str(tmp_path / "model"), tmp_path / "out", config)
        assert transformers.AutoFeatureExtractor.from_pretrained(tmp_path / "out").sampling_rate == 16000
        (tmp_path / "0.wav").rename(tmp_path / "LOUD.WAV")
        assert collab.calibrate(collab.Checkpoint(model, extractor), source).summary["rows"] == 3
        with wave.open(str(tmp_path / "none.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(b"\0\0" * 2)
        with pytest.raises(collab.errors.DataError, match=r"none.wav has 2 samples, and the model needs at least \d+"):
            collab.calibrate(collab.Checkpoint(model, extractor), source)
        with pytest.raises(collab.errors.DataError, match="no synthetic data for audio"):
            collab.calibrate(model)


class TestCache:
    def test_is_used_and_refused(self, tmp_path: Path, tokenizer: BertTokenizer) -> None:
        model, file = tiny_model(BERT), tmp_path / "cache" / "moments.safetensors"
        arguments = {"options": FEW, "cache": file}
        checkpoint = collab.Checkpoint(model, tokenizer)
        first = collab.calibrate(checkpoint, SENTENCES, **arguments)
        calls: list[int] = []
        model.register_forward_pre_hook(lambda *_: calls.append(1))
        second = collab.calibrate(checkpoint, SENTENCES, **arguments)
        assert not calls
        for name, moments in first.moments.items():
            assert all(
                torch.equal(a, b)
                for a, b in zip(moments.tensors().values(), second.moments[name].tensors().values(), strict=True)
            )
        assert second.held_out_moments.keys() == first.held_out_moments.keys()
        with pytest.raises(collab.errors.CalibrationError, match="other data"):
            collab.calibrate(checkpoint, SENTENCES[1:], **arguments)
        other = tiny_model(BERT)
        with torch.no_grad():
            other.encoder.layer[0].attention.self.query.weight[0, 0] += 1
        with pytest.raises(collab.errors.CalibrationError, match="of another model"):
            collab.calibrate(collab.Checkpoint(other, tokenizer), SENTENCES, **arguments)
        file.write_text("something else")
        with pytest.raises(collab.errors.CalibrationError, match="not a cache of moments"):
            collab.calibrate(checkpoint, SENTENCES, **arguments)
        with pytest.raises(collab.errors.CalibrationError, match="cannot be cached"):
            collab.calibrate(model, lambda model: None, cache=file)
        assert [path.name for path in file.parent.iterdir()] == [file.name]


class TestBadInput:
    def test_too_few_rows(self, tmp_path: Path, tokenizer: BertTokenizer) -> None:
        model = tiny_model(BERT)
        (tmp_path / "empty.txt").write_text("\n\n")
        with pytest.raises(collab.errors.DataError, match="no rows"):
            collab.calibrate(collab.Checkpoint(model, tokenizer), collab.DataSource(str(tmp_path / "empty.txt")))
        for rows in ([], ["a b"]):
            with pytest.raises(collab.errors.DataError, match="At least 2 rows"):
                collab.calibrate(collab.Checkpoint(model, tokenizer), rows)
        with pytest.raises(collab.errors.CalibrationError, match="never called"):
            collab.calibrate(model, lambda model: None)

    def test_a_callable_without_gradients(self) -> None:
        model = tiny_model(BERT)
        with pytest.raises(collab.errors.CalibrationError, match=r"outside torch\.no_grad"):
            collab.calibrate(model, torch.no_grad()(lambda model: model(**probe_inputs(model))))

    def test_long_text_is_cut_and_said(self, tokenizer: BertTokenizer, caplog: pytest.LogCaptureFixture) -> None:
        model = tiny_model(BERT)
        calibration = collab.calibrate(collab.Checkpoint(model, tokenizer), ["a b c " * 100, "a"])
        assert "beyond 40 tokens is truncated" in caplog.text
        assert calibration.summary["rows"] == 2
        caplog.clear()
        collab.calibrate(collab.Checkpoint(model, tokenizer), ["a b c", "a"])
        assert "truncated" not in caplog.text

    def test_few_tokens_are_said(self, tokenizer: BertTokenizer) -> None:
        calibration = collab.calibrate(collab.Checkpoint(tiny_model(BERT), tokenizer), ["a b", "c", "d"])
        assert "rank-deficient" in calibration.notes[0]

    def test_activations_that_are_not_finite(self) -> None:
        model = tiny_model(BERT)
        data = batches(model, 3)
        with torch.no_grad():
            model.embeddings.word_embeddings.weight[7] = float("inf")
        data[1]["input_ids"][0, 0] = 7
        with pytest.raises(collab.errors.CalibrationError, match=r"encoder\.layer\.0.* in batch 2"):
            collab.calibrate(
                model,
                [{**batch, "input_ids": batch["input_ids"].clamp(min=8 * (i != 1))} for i, batch in enumerate(data)],
            )
        assert not hooks(model)

    def test_things_that_are_no_data(self, tmp_path: Path, tokenizer: BertTokenizer) -> None:
        model = tiny_model(BERT)
        (tmp_path / "rows.docx").write_text("x")
        for source, message in (
            ("nowhere/at-all", "no data set of that name"),
            (str(tmp_path / "rows.docx"), "Unsupported file type '.docx'"),
        ):
            with pytest.raises(collab.errors.DataError, match=message):
                collab.calibrate(collab.Checkpoint(model, tokenizer), collab.DataSource(source))
        with pytest.raises(collab.errors.DataError, match="tokenizer"):
            collab.calibrate(model, SENTENCES)
        with pytest.raises(collab.errors.DataError, match="row 1 is \\('a', None\\)"):
            collab.calibrate(collab.Checkpoint(model, tokenizer), [("a", None), ("b", "c")])
        for kind, message in (
            ("vit", "takes images, .* row 1 is a str"),
            ("wav2vec2", "takes audio, .* row 1 is a str"),
        ):
            with pytest.raises(collab.errors.DataError, match=message):
                collab.calibrate(collab.Checkpoint(tiny_model(BY_TYPE[kind]), object()), SENTENCES)
        with pytest.raises(collab.errors.CalibrationError, match="must hold tensors"):
            collab.calibrate(model, [{"input_ids": [1, 2]}, {"input_ids": [1]}])

    @pytest.mark.parametrize("values", [{"samples": 1}, {"max_length": 1}, {"held_out": 0.0}, {"held_out": 0.9}])
    def test_options(self, values: dict) -> None:
        with pytest.raises(collab.errors.ConfigurationError):
            collab.CalibrationOptions(**values)

    def test_of_another_model(self) -> None:
        calibration = collab.calibrate(tiny_model(BERT), options=FEW)
        with pytest.raises(collab.errors.CalibrationError, match="of another model"):
            collab.convert(
                tiny_model(BERT, num_hidden_layers=1),
                collab.ConversionConfig(rank=8, refine="none", compare=False),
                calibration=calibration,
            )

    @pytest.mark.parametrize("model_type", ["bert", "esm", "llama"])
    @pytest.mark.parametrize("change", [{"hidden_size": 64}, {"num_attention_heads": 2}])
    def test_of_a_model_of_other_widths(self, model_type: str, change: dict[str, int]) -> None:
        row = BY_TYPE[model_type]
        narrow = tiny_model(row, num_key_value_heads=2)
        calibration = collab.calibrate(narrow, batches(narrow))
        with pytest.raises(collab.errors.CalibrationError, match=r"of another model.*Calibrate this model"):
            collab.convert(
                tiny_model(row, num_key_value_heads=2, **change),
                collab.ConversionConfig(rank=8, refine="none", compare=False),
                calibration=calibration,
            )


class TestInOrder:
    def test_first_layer_is_as_always_and_later_ones_see_what_came_before(self, tokenizer: BertTokenizer) -> None:
        model = tiny_model(BERT)
        before = state(model)
        arguments = {"options": FEW}
        checkpoint = collab.Checkpoint(model, tokenizer)
        plain = collab.calibrate(checkpoint, SENTENCES, **arguments)
        for form in FORMS:
            for content in ("exact", "folded"):
                config = collab.ConversionConfig(rank=8, form=form, content=content, refine="none", compare=False)
                ordered = collab.calibrate_in_order(checkpoint, config, SENTENCES, **arguments)
                first, second = (ordered.moments[name] for name in layer_names(model))
                torch.testing.assert_close(first.key_covariance, plain.moments[layer_names(model)[0]].key_covariance)
                other = plain.moments[layer_names(model)[1]].query_covariance
                assert not torch.allclose(second.query_covariance, other, rtol=1e-3)
                report = collab.convert(model, config, calibration=ordered).report
                assert report.calibration["in_order"] is True
        assert not changed(model, before)

    @pytest.mark.slow
    def test_full_rank_changes_nothing(self) -> None:
        """A partly converted model at full rank is the original, so its moments are the same but for the directions."""
        model = tiny_model(BERT)
        ordered = collab.calibrate_in_order(model, collab.ConversionConfig(rank=32, compare=False), batches(model, 100))
        plain = collab.calibrate(model, batches(model, 100))
        for name in layer_names(model):
            first, second = ordered.moments[name].query_covariance, plain.moments[name].query_covariance
            assert (first - second).norm() < 0.2 * second.norm()

    def test_a_callable_is_refused(self) -> None:
        with pytest.raises(collab.errors.CalibrationError, match="callable"):
            collab.calibrate_in_order(
                tiny_model(BERT), collab.ConversionConfig(rank=8, compare=False), lambda model: None
            )
