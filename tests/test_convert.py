"""Converting models in memory."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tiny import (
    BERT,
    BY_TYPE,
    Row,
    changed,
    every_form,
    in_turn,
    largest_difference,
    random_model,
    state,
    tiny_model,
)
from torch import nn

import collab
from collab.decomposition import FORMS
from collab.evaluation.speed import measure_speed
from collab.evaluation.timing import Run
from collab.modeling.collab_attention import CollaborativeAttention
from collab.models.assembly import in_dtype
from collab.models.inputs import probe_inputs
from collab.models.layers import attention_layers, parameters
from collab.models.weights import digest_of
from collab.steps.measurement import Speed


def test_the_original_is_left_untouched() -> None:
    native = tiny_model(BERT)
    before, config, class_before = state(native), copy.deepcopy(native.config.to_dict()), type(native)
    converted = collab.convert(native, collab.ConversionConfig(rank=8, compare=False)).model
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.zero_()
    assert type(native) is class_before
    assert native.config.to_dict() == config
    assert not changed(native, before)


def test_in_place() -> None:
    native = tiny_model(BERT)
    reference = collab.convert(native, collab.ConversionConfig(rank=8, compare=False)).model
    embedding = native.embeddings.word_embeddings.weight.data_ptr()
    conversion = collab.convert(native, collab.ConversionConfig(rank=8, compare=False), inplace=True)
    assert conversion.model is native
    assert type(native) is type(reference)
    assert native.embeddings.word_embeddings.weight.data_ptr() == embedding
    assert native.config.model_type == "collab_bert"
    inputs = probe_inputs(native)
    with torch.no_grad():
        assert largest_difference(native(**inputs), reference(**inputs)) == 0


@every_form
def test_new_weights_can_stay_in_files(form: str, tmp_path: Path) -> None:
    native, config = tiny_model(BERT), collab.ConversionConfig(rank=8, form=form, compare=False)
    expected = state(collab.convert(native, config).model)
    converted = collab.convert(native, config, share=True, scratch=tmp_path).model
    assert len(list(tmp_path.iterdir())) == len(attention_layers(native))
    assert not changed(converted, expected)
    with torch.no_grad():
        converted.encoder.layer[0].attention.self.query.weight.zero_()  # a change stays in memory
    assert not changed(collab.convert(native, config).model, expected)


@every_form
@pytest.mark.parametrize("in_order", [False, True])
def test_a_content_bias_too_large_for_float16(form: str, in_order: bool) -> None:
    """W_K b_Q may not fit where both of its factors do."""
    model = tiny_model(BERT).half()
    for layer in model.encoder.layer:
        with torch.no_grad():
            layer.attention.self.query.bias.fill_(600)
            layer.attention.self.key.weight.fill_(30)
    before = state(model)
    config = collab.ConversionConfig(rank=8, form=form, compare=False)

    def convert() -> None:
        if in_order:
            collab.calibrate_in_order(model, config, [probe_inputs(model, seed) for seed in range(4)])
        else:
            collab.convert(model, config, inplace=True)

    with pytest.raises(collab.errors.WeightsError, match=r"content_bias.* does not fit float16.*bfloat16 or float32"):
        convert()
    assert not changed(model, before)
    assert all(tensor.isfinite().all() for tensor in state(collab.convert(model.bfloat16(), config).model).values())


def test_in_place_changes_nothing_when_it_fails() -> None:
    native = tiny_model(BERT)
    before = state(native)

    def interrupt(what: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collab.convert(native, collab.ConversionConfig(rank=8, compare=False), inplace=True, progress=interrupt)
    assert type(native) is transformers.BertModel
    assert not changed(native, before)


@every_form
def test_ranks(form: str) -> None:
    native = tiny_model(BERT)
    for rank, expected in ((8, [8, 8]), (0.5, [16, 16]), (1.0, [32, 32]), ([4, 0.25], [4, 8])):
        conversion = collab.convert(native, collab.ConversionConfig(rank=rank, form=form, compare=False))
        assert [layer.rank for layer in conversion.report.layers] == expected
        assert [entry["rank"] for entry in conversion.model.config.collab_layers] == expected
        assert {entry["form"] for entry in conversion.model.config.collab_layers} == {form}


def test_progress_of_a_large_model_tells_bytes(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("conversion.convert", "checkpoints.transform"):
        monkeypatch.setattr(f"collab.{module}.LARGE", 0)
    seen: list[tuple[str, int, int | None]] = []
    collab.checkpoints.convert(
        str(original),
        tmp_path / "out",
        collab.ConversionConfig(rank=8, compare=False),
        calibration=collab.CalibrationRequest("none"),
        progress=lambda *entry: seen.append(entry),
    )
    assert [entry for entry in seen if entry[0] != "loading the model"] == [
        ("loading the model; 0.0 GB", 0, None),
        *(("solving; 0.0 of 0.0 GB", done, 2) for done in range(3)),
        ("writing and checking; 0.0 GB", 0, None),
    ]


@every_form
def test_report(form: str) -> None:
    native = tiny_model(BERT, transformers.BertForMaskedLM)
    seen: list[tuple[int, int | None]] = []
    conversion = collab.convert(
        native,
        collab.ConversionConfig(rank=8, form=form, seed=3),
        progress=lambda what, done, total: seen.append((done, total)),
    )
    report = conversion.report
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert [layer.name for layer in report.layers] == [f"bert.encoder.layer.{i}.attention.self" for i in range(2)]
    mixing = {"concat": 0, "cp": 4 * 8, "tucker": 4 * 8 * 8}[form]
    for layer in report.layers:
        assert (layer.form, layer.rank, layer.full_rank) == (form, 8, 32)
        assert 0 < layer.error < 1
        assert layer.score_error is layer.held_out_error is None
        assert layer.query_key == collab.Count(2 * (32 * 32 + 32), 2 * 8 * 32 + mixing + 4 * 32)
    for layer, others in zip(report.layers, report.comparison, strict=True):
        assert others["name"] == layer.name
        assert others[form]["rank"] == 8
        assert layer.error <= others[form]["error"]
        assert others["cp"]["error"] <= others["concat"]["error"] * 1.2
    assert report.query_key == collab.Count(2 * 2112, 2 * (2 * 8 * 32 + mixing + 4 * 32))
    assert report.attention.before == 2 * 2 * 2112
    assert report.attention.before - report.attention.after == report.query_key.before - report.query_key.after
    for model, count in ((native, report.model.before), (conversion.model, report.model.after)):
        assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert report.model.before - report.model.after == report.query_key.before - report.query_key.after
    written = json.loads(report.to_json())
    assert written["settings"]["seed"] == 3
    assert written["parameters"]["query_key"]["ratio"] == pytest.approx(report.query_key.ratio, abs=1e-6)
    assert set(written["versions"]) >= {"collab", "torch", "transformers", "tensorly", "python"}


@in_turn([*BY_TYPE.values()])
def test_attention_is_counted_alike_in_every_family(rows: list[Row]) -> None:
    for row in rows:
        model = tiny_model(row)
        result = collab.convert(model, collab.ConversionConfig(rank=8, compare=False))
        for each, place in ((model, "before"), (result.model, "after")):
            counts = parameters(each)
            assert getattr(result.report.attention, place) == counts["attention"], row.model_type
            assert getattr(result.report.query_key, place) == counts["query_key"], row.model_type
            by_layer = (getattr(layer.query_key, place) for layer in result.report.layers)
            assert sum(by_layer) == counts["query_key"], row.model_type
        layers = attention_layers(model)
        projections = [layer.projection(role) for layer in layers for role in ("query", "key", "value")]
        projections += [layer.output for layer in layers]
        expected = sum(parameter.numel() for projection in projections for parameter in projection.parameters())
        assert result.report.attention.before == expected, row.model_type
        biased = all(projection.bias is not None for projection in projections)
        if biased and "hidden_size" in row.values and row.model_type != "layoutlmv3" and not row.is_rotary:
            count = 2 if row.model_type != "albert" else 4
            assert expected == count * 4 * (32 * 32 + 32), row.model_type


def test_layers_without_biases() -> None:
    native = tiny_model(BY_TYPE["vit"], qkv_bias=False)
    converted = collab.convert(native, collab.ConversionConfig(rank=32, compare=False)).model
    assert all(
        module.content_bias is None for module in converted.modules() if isinstance(module, CollaborativeAttention)
    )
    inputs = probe_inputs(native)
    with torch.no_grad():
        assert largest_difference(native(**inputs), converted(**inputs)) < 1e-5


def test_tensorly_solver() -> None:
    native = tiny_model(BERT)
    for form in ("cp", "tucker"):
        config = collab.ConversionConfig(rank=12, form=form, solver="tensorly", seed=1, compare=False)
        report = collab.convert(native, config).report
        assert all(0 < layer.error < 1 for layer in report.layers)
        assert report.settings["solver"]["method"] == "tensorly"


def test_modes_and_flags_carry_over() -> None:
    native = tiny_model(BERT)
    native.train()
    native.set_attn_implementation("eager")
    for parameter in native.embeddings.parameters():
        parameter.requires_grad_(False)
    converted = collab.convert(native, collab.ConversionConfig(rank=8, compare=False)).model
    assert converted.training
    assert converted.config._attn_implementation == "eager"
    assert not any(parameter.requires_grad for parameter in converted.embeddings.parameters())
    assert all(parameter.requires_grad for parameter in converted.encoder.parameters())


def test_generation_config_carries_over() -> None:
    native = random_model(transformers.BertLMHeadModel, BERT.config(is_decoder=True))
    native.generation_config.max_new_tokens = 17
    converted = collab.convert(native, collab.ConversionConfig(rank=8, compare=False)).model
    assert converted.generation_config.max_new_tokens == 17
    converted.generation_config.max_new_tokens = 3
    assert native.generation_config.max_new_tokens == 17


def test_static_cache() -> None:
    """It holds as many keys as values, though one key is shared by all heads."""
    native = random_model(transformers.BertLMHeadModel, BERT.config(is_decoder=True))
    native.generation_config.update(eos_token_id=None, max_new_tokens=6, do_sample=False)
    prompt = torch.tensor([[5, 6, 7]])
    expected = native.generate(prompt)
    for form in FORMS:
        converted = collab.convert(native, collab.ConversionConfig(rank=32, form=form, compare=False)).model
        assert torch.equal(converted.generate(prompt, cache_implementation="static"), expected)


def test_wrapping_keeps_the_weights() -> None:
    """A model that contains a converted one initializes its parts, but not those that have weights already."""
    converted = collab.convert(tiny_model(BERT), collab.ConversionConfig(rank=8, compare=False)).model
    before = state(converted)
    decoder = random_model(transformers.BertLMHeadModel, BERT.config(is_decoder=True, add_cross_attention=True))
    transformers.EncoderDecoderModel(encoder=converted, decoder=decoder)
    converted.init_weights()
    assert not changed(converted, before)


def test_gradient_checkpointing_carries_over() -> None:
    native = tiny_model(BERT)
    native.gradient_checkpointing_enable()
    converted = collab.convert(native, collab.ConversionConfig(rank=8, compare=False)).model
    assert any(getattr(module, "gradient_checkpointing", False) for module in converted.modules())


def test_numpy_ranks() -> None:
    native = tiny_model(BERT)
    for rank in (np.int64(8), np.array([8, 8]), np.float32(0.25), Fraction(1, 4)):
        conversion = collab.convert(native, collab.ConversionConfig(rank=rank, compare=False))
        assert [layer.rank for layer in conversion.report.layers] == [8, 8]
        json.loads(conversion.report.to_json())


def test_optional_parts_stay_as_they_are(tmp_path: Path) -> None:
    native = transformers.BertModel(BERT.config(), add_pooling_layer=False)
    converted = collab.convert(native, collab.ConversionConfig(rank=8, compare=False)).model
    assert converted.pooler is None
    folder = tmp_path / "out"
    collab.save(collab.Checkpoint(converted), folder)
    exact = collab.convert(native, collab.ConversionConfig(rank=1.0, compare=False)).model
    pruned = collab.prune(exact, collab.PruneOptions(keep={0: (1, 2)})).model
    for model in (
        pruned,
        in_dtype(converted, torch.bfloat16),
        collab.expand(exact).model,
        collab.lengthen(exact, collab.LongOptions(block=8, dense_below=16)).model,
    ):
        assert model.pooler is None
    images = collab.convert(
        transformers.ViTModel(BY_TYPE["vit"].config(), use_mask_token=True), collab.ConversionConfig(rank=1.0)
    )
    assert collab.expand(images.model).model.embeddings.mask_token is not None


def test_a_hash_tells_heads_with_the_same_weights_apart() -> None:
    """Moments depend on the head: one answers for each row, the other for each token."""
    config = BY_TYPE["modernbert"].config()
    rows, tokens = (
        random_model(kind, config)
        for kind in (transformers.ModernBertForSequenceClassification, transformers.ModernBertForTokenClassification)
    )
    tokens.load_state_dict(rows.state_dict())
    assert digest_of(rows) != digest_of(tokens)


def test_speed_in_another_dtype(tmp_path: Path) -> None:
    """Of sound, whose inputs are in the model's dtype: the original is timed in it, too."""
    tiny_model(BY_TYPE["whisper"]).save_pretrained(tmp_path / "original")
    config = collab.ConversionConfig(rank=8, refine="none", compare=False)
    request = collab.CalibrationRequest(source="none")
    made = collab.checkpoints.convert(
        str(tmp_path / "original"),
        tmp_path / "out",
        config,
        calibration=request,
        dtype=torch.bfloat16,
        measure_speed=True,
    )
    speed = made.step(Speed)
    assert speed is not None
    assert 0 < speed.low <= speed.ratio <= speed.high
    assert speed.dtype == "bfloat16"


def test_speed_of_a_pruned_model(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is timed beside the model as it was read, not beside the one with all heads that is converted."""
    compared: list[int] = []

    def measure(model: transformers.PreTrainedModel, beside: transformers.PreTrainedModel, *size: int) -> Speed:
        compared.append(sum(len(layer.heads) for layer in attention_layers(beside)))
        return measure_speed(model, beside, *size)

    monkeypatch.setattr("collab.checkpoints.speed.measure_speed", measure)
    collab.checkpoints.prune(str(original), tmp_path / "pruned", collab.PruneOptions(keep={0: (1, 3), 1: (0, 1, 2)}))
    config = collab.ConversionConfig(rank=8, refine="none", compare=False)
    request = collab.CalibrationRequest(source="none")
    made = collab.checkpoints.convert(
        str(tmp_path / "pruned"), tmp_path / "out", config, calibration=request, measure_speed=True
    )
    assert made.step(Speed) is not None
    assert compared == [5]


@pytest.mark.parametrize(("seconds", "rounds"), [(0.004, 31), (0.3, 9), (0.8, 9), (2.0, 5), (60.0, 3)])
def test_rounds_of_a_measured_speed(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, rounds: int
) -> None:
    """Nine, where ten seconds allow it: fewer say little on a busy machine."""

    def made_up(runs: Sequence[Run], number: int, *, warm: int = 1) -> list[list[float]]:
        return [[0.6 * seconds, 0.4 * seconds]] * number

    monkeypatch.setattr("collab.evaluation.speed.rounds_in_turn", made_up)
    config = collab.ConversionConfig(rank=8, refine="none", compare=False)
    request = collab.CalibrationRequest(source="none")
    speed = collab.checkpoints.convert(
        str(original), tmp_path / "out", config, calibration=request, measure_speed=True
    ).step(Speed)
    assert speed is not None
    assert (speed.rounds, speed.ratio) == (rounds, pytest.approx(1.5))
    assert f"the middle half of {rounds} rounds" in speed.summary()


class TestBadInput:
    @pytest.mark.parametrize("rank", [0, -2, 33, 1.5, [8], [8, 8, 8], [8, 64], "8", True])
    def test_ranks(self, rank: object) -> None:
        with pytest.raises(collab.errors.RankError):
            collab.convert(tiny_model(BERT), collab.ConversionConfig(rank=rank))  # type: ignore[arg-type]

    def test_ranks_are_checked_before_any_work(self, original: Path, tmp_path: Path) -> None:
        request = collab.CalibrationRequest(collab.DataSource(str(tmp_path / "nothing.txt")))
        with pytest.raises(collab.errors.RankError):
            collab.checkpoints.convert(
                str(original), tmp_path / "out", collab.ConversionConfig(rank=999), calibration=request
            )

    @pytest.mark.parametrize("values", [{"form": "svd"}, {"solver": "magic"}, {"seed": -1}, {"seed": 1.5}])
    def test_settings(self, values: dict) -> None:
        with pytest.raises(collab.errors.ConfigurationError):
            collab.ConversionConfig(rank=8, **values)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_non_finite_weights_are_named(self, value: float) -> None:
        native = tiny_model(BERT)
        with torch.no_grad():
            native.encoder.layer[1].attention.self.key.weight[3, 4] = value
        with pytest.raises(collab.errors.WeightsError, match=r"encoder\.layer\.1\.attention\.self\.key\.weight"):
            collab.convert(native, collab.ConversionConfig(rank=8))

    def test_converted_already(self) -> None:
        converted = collab.convert(tiny_model(BERT), collab.ConversionConfig(rank=8)).model
        with pytest.raises(collab.errors.AlreadyConvertedError, match="collaborative already"):
            collab.convert(converted, collab.ConversionConfig(rank=4))

    def test_unsupported_architectures_are_refused_with_the_reason(self) -> None:
        tiny = {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "intermediate_size": 32,
            "vocab_size": 50,
        }
        rope = transformers.RoFormerModel(transformers.RoFormerConfig(**tiny))
        with pytest.raises(
            collab.errors.UnsupportedArchitectureError,
            match=r"rotary position.*Supported: albert, audio-spectrogram-transformer, bart, ",
        ):
            collab.convert(rope, collab.ConversionConfig(rank=8))
        disentangled = transformers.DebertaModel(transformers.DebertaConfig(**tiny))
        with pytest.raises(collab.errors.UnsupportedArchitectureError, match="Use a DeBERTa-v2 or v3 checkpoint"):
            collab.convert(disentangled, collab.ConversionConfig(rank=8))
        mixed = transformers.ConvBertModel(transformers.ConvBertConfig(**tiny, embedding_size=32))
        with pytest.raises(collab.errors.UnsupportedArchitectureError, match="mixed with convolutions"):
            collab.convert(mixed, collab.ConversionConfig(rank=8))

    def test_relative_positions_are_refused(self) -> None:
        native = transformers.BertModel(BERT.config(position_embedding_type="relative_key"))
        with pytest.raises(collab.errors.UnsupportedArchitectureError, match="relative_key"):
            collab.convert(native, collab.ConversionConfig(rank=8))

    def test_subclasses_are_refused(self) -> None:
        class Mine(transformers.BertModel): ...

        with pytest.raises(collab.errors.UnsupportedArchitectureError, match="Mine cannot be converted"):
            collab.convert(Mine(BERT.config()), collab.ConversionConfig(rank=8))

    def test_adapters_must_be_merged(self) -> None:
        native = tiny_model(BERT)
        native.encoder.layer[0].attention.self.query = nn.Sequential(nn.Linear(32, 32))
        with pytest.raises(collab.errors.WeightsError, match="merge"):
            collab.convert(native, collab.ConversionConfig(rank=8))

    def test_a_model_that_its_config_does_not_describe(self) -> None:
        native = tiny_model(BERT, transformers.BertForSequenceClassification)
        native.classifier = torch.nn.Linear(32, 7)
        with pytest.raises(collab.errors.WeightsError, match=r"classifier\.weight should be of shape \(2, 32\)"):
            collab.convert(native, collab.ConversionConfig(rank=8))
        native = tiny_model(BERT)
        del native.encoder.layer[1]
        with pytest.raises(collab.errors.WeightsError, match=r"encoder\.layer\.1.* is absent"):
            collab.convert(native, collab.ConversionConfig(rank=8))

    @pytest.mark.parametrize("thing", [None, "bert-base-uncased", nn.Linear(3, 3)])
    def test_not_a_model(self, thing: object) -> None:
        with pytest.raises(collab.errors.UnsupportedArchitectureError, match="must be a transformers model"):
            collab.convert(thing, collab.ConversionConfig(rank=8))

    def test_offloaded_weights(self) -> None:
        native = tiny_model(BERT)
        native.pooler.to("meta")
        with pytest.raises(collab.errors.WeightsError, match=r"pooler.*not in memory"):
            collab.convert(native, collab.ConversionConfig(rank=8))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
    def test_no_device(self) -> None:
        config = collab.ConversionConfig(rank=8, solver=collab.SolverOptions(device="cuda"))
        with pytest.raises(collab.errors.DeviceError, match="No device 'cuda'"):
            collab.convert(tiny_model(BERT), config)
