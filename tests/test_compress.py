"""Compression: every part narrower within one budget, exact where nothing is lost, reloadable, and back to native."""

from __future__ import annotations

import copy
import importlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import run
from reload import outputs_without_collab
from tiny import (
    BERT,
    BY_TYPE,
    LETTERS,
    ROWS,
    Row,
    batches,
    few_kinds,
    in_pairs,
    largest_difference,
    often,
    outputs,
    random_model,
    save_with_tokenizer,
    tiny_model,
)
from transformers import (
    AutoModel,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
    T5EncoderModel,
    UniSpeechSatForPreTraining,
    Wav2Vec2ForSequenceClassification,
)

import collab
from collab.compression import candidates, compressions, held_out, trials
from collab.compression.feed_forward import eliminate
from collab.compression.statistics import ProjectionStatistics
from collab.decomposition import HeadTensor, decompose
from collab.errors import (
    BudgetError,
    CalibrationError,
    ConfigurationError,
    UnsupportedArchitectureError,
)
from collab.evaluation import timing
from collab.evaluation.timing import Run
from collab.models.inputs import probe_inputs
from collab.models.layers import FACTORS, attention_layers, count_parameters
from collab.planning.allocation import Allocation, Point, allocate, convex_hull
from collab.planning.budget import Budget
from collab.planning.plan import PlanOption
from collab.progress import no_progress
from collab.steps.compression import Compression

TEXT = [" ".join(LETTERS[(i * 7 + j * j) % 26] for j in range(2 + i % 9)) for i in range(96)]


def compressed(model: PreTrainedModel, **settings: object) -> collab.Checkpoint:
    """A compressed model, calibrated on batches that go with it."""
    calibration = collab.calibrate(model, batches(model, 6))
    return collab.compress(model, collab.CompressionConfig(**settings), calibration)  # type: ignore[arg-type]


HEADS = {
    "BertForPreTraining",
    "EsmForMaskedLM",
    "ViTForMaskedImageModeling",
    "Wav2Vec2ForPreTraining",
    "WhisperForConditionalGeneration",
}
"""Those that are always tested; the others are `exhaustive`."""


def able(row: Row) -> Row:
    """The row of a family that can be compressed; skips the others."""
    if not row.family.base.feed_forward_classes:
        pytest.skip("its feed-forward layers are not known")
    return row


class TestCompress:
    @few_kinds
    def test_every_family_within_its_budget_and_back_to_native(self, row: Row, tmp_path: Path) -> None:
        model = tiny_model(able(row))
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        compression = compressed(model, flops=0.6, drop_layers=0)
        report = compression.report
        assert report.flops.ratio <= 0.6
        assert report.parameters.after == sum(tensor.numel() for tensor in compression.model.parameters())
        assert report.parameters.after < report.parameters.before
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        expected = outputs(compression.model)
        assert all(bool(tensor.isfinite().all()) for tensor in expected.values())
        compression.model.save_pretrained(tmp_path)
        assert largest_difference(expected, outputs(type(compression.model).from_pretrained(tmp_path))) < 1e-5
        expansion = collab.expand(compression.model)
        assert expansion.report.output_difference < 1e-5 * max(1.0, expansion.report.output_scale)
        assert type(expansion.model) is type(model)

    @pytest.mark.parametrize(
        "native_class",
        often([model.native_class() for row in ROWS for model in row.family.heads], HEADS),
    )
    def test_every_head_and_reload(self, native_class: type[PreTrainedModel], tmp_path: Path) -> None:
        if native_class is UniSpeechSatForPreTraining:
            pytest.skip("its output does not depend on the attention")
        row = able(BY_TYPE[native_class.config_class.model_type])
        compression = compressed(tiny_model(row, native_class), flops=0.6, healed=True)
        assert compression.report.agreement.keys() > {"rows"}
        compression.model.save_pretrained(tmp_path)
        reloaded = type(compression.model).from_pretrained(tmp_path)
        assert largest_difference(outputs(compression.model), outputs(reloaded)) < 1e-5

    @pytest.mark.parametrize("row", often(ROWS, {"eurobert"}))
    def test_float16_is_computed_in_float32(self, row: Row, tmp_path: Path) -> None:
        tiny_model(able(row)).half().save_pretrained(tmp_path)
        stored = type(tiny_model(row)).from_pretrained(tmp_path, dtype=torch.float16)
        before = [tensor.clone() for tensor in (*stored.parameters(), *stored.buffers())]
        rows = batches(stored, 12)

        half, whole = (
            collab.compress(model, collab.CompressionConfig(flops=0.6), collab.calibrate(model, rows)).model
            for model in (stored, copy.deepcopy(stored).float())
        )
        for name, tensor in whole.state_dict().items():
            torch.testing.assert_close(
                half.state_dict()[name], tensor.to(half.state_dict()[name].dtype), rtol=0, atol=0
            )
        half.save_pretrained(tmp_path)
        reloaded = type(half).from_pretrained(tmp_path, dtype=torch.float16).state_dict()
        assert {name: tensor.dtype for name, tensor in half.state_dict().items()} == {
            name: tensor.dtype for name, tensor in reloaded.items()
        }
        for tensor, old in zip((*stored.parameters(), *stored.buffers()), before, strict=True):
            torch.testing.assert_close(tensor, old, rtol=0, atol=0)

    def test_whole_budget_changes_nothing(self) -> None:
        model = tiny_model(BERT)
        report = compressed(model, flops=1.0).report
        assert report.flops.ratio == 1
        assert report.predicted_loss == 0
        assert not any(layer.dropped for layer in report.layers)

    def test_counts_two_operations_for_a_multiply_add(self) -> None:
        model = tiny_model(BERT)
        config, tokens = model.config, 24
        width, neurons = config.hidden_size, config.intermediate_size
        products = tokens * (4 * width**2 + 2 * width * neurons) + 2 * tokens**2 * width
        report = compressed(model, flops=1.0, length=tokens).report
        assert report.flops.before == 2 * config.num_hidden_layers * products

    @pytest.mark.parametrize("part", ["queries-keys", "values", "feed-forward"])
    def test_only_one_part(self, part: str) -> None:
        model = tiny_model(BERT)
        layers = compressed(model, flops=0.9, only=(part,)).report.layers
        narrower = {
            "queries-keys": any(layer.rank < layer.full_rank for layer in layers),
            "values": any(layer.value_width < layer.full_value_width for layer in layers),
            "feed-forward": any(layer.neurons < layer.full_neurons for layer in layers),
        }
        assert narrower == {name: name == part for name in narrower}

    def test_neurons_that_repeat_others_cost_nothing(self) -> None:
        model = tiny_model(BERT)
        with torch.no_grad():
            for layer in model.encoder.layer:
                layer.intermediate.dense.weight[16:] = layer.intermediate.dense.weight[:16].repeat(2, 1)
                layer.intermediate.dense.bias[16:] = layer.intermediate.dense.bias[:16].repeat(2)
        compression = compressed(model, flops=0.74, length=8, only=("feed-forward",), drop_layers=0)
        assert [layer.neurons for layer in compression.report.layers] == [16, 16]
        # λ of the least squares, relative to the variance of an activation, is 1e-4.
        assert largest_difference(outputs(model), outputs(compression.model)) < 5e-3

    def test_values_of_low_rank_cost_nothing(self) -> None:
        model = tiny_model(BERT)
        with torch.no_grad():
            for layer in model.encoder.layer:
                value = layer.attention.self.value
                value.weight[:] = value.weight.view(4, 8, 32)[:, :4].repeat(1, 2, 1).view(32, 32)
        compression = compressed(model, flops=0.85, length=8, only=("values",), drop_layers=0)
        widths = [layer.value_width for layer in compression.report.layers]
        assert min(widths) >= 4
        assert sum(widths) < 16
        assert largest_difference(outputs(model), outputs(compression.model)) < 1e-3

    def test_value_biases_stay_where_the_output_has_none(self) -> None:
        """Qwen2 has biases of values, but none after them that could take these over."""
        model = tiny_model(BY_TYPE["qwen2"])
        width = model.config.hidden_size // model.config.num_attention_heads
        with torch.no_grad():
            for layer in model.model.layers if hasattr(model, "model") else model.layers:
                value = layer.self_attn.v_proj
                value.bias.normal_()
                for parameter in (value.weight, value.bias):
                    heads = parameter.view(-1, width, *parameter.shape[1:])
                    heads[:, width // 2 :] = heads[:, : width // 2].clone()
        compression = compressed(model, flops=0.95, length=8, only=("values",), drop_layers=0)
        assert any(layer.value_width < layer.full_value_width for layer in compression.report.layers)
        assert largest_difference(outputs(model), outputs(compression.model)) < 1e-3

    def test_drops_layers(self, tmp_path: Path) -> None:
        model = tiny_model(BERT, num_hidden_layers=4)
        compression = compressed(model, flops=0.5, drop_layers=2, only=("layers",), healed=True)  # not refitted
        assert sum(layer.dropped for layer in compression.report.layers) == 2
        config = compression.model.config
        assert config.num_hidden_layers == 2
        left = [number for number in range(4) if number not in config.collab_dropped_layers]
        native = BertModel(config=model.config).eval()
        native.load_state_dict(model.state_dict())
        native.encoder.layer = torch.nn.ModuleList(native.encoder.layer[number] for number in left)
        assert largest_difference(outputs(native), outputs(compression.model)) < 1e-5
        assert collab.expand(compression.model).model.config.num_hidden_layers == 2
        compression.model.save_pretrained(tmp_path)
        assert AutoModel.from_pretrained(tmp_path).config.collab_dropped_layers == config.collab_dropped_layers

    @pytest.mark.parametrize(
        ("model_type", "read", "embeddings"),
        often([("dinov2", [6], 0), ("beit", [2, 4], 0), ("data2vec-vision", [2, 4], 1)], {"beit-[2, 4]-0"}),
    )
    def test_states_that_a_head_reads_are_numbered_anew(
        self, model_type: str, read: list[int], embeddings: int, tmp_path: Path
    ) -> None:
        """Each is that after the same layer of the original. `embeddings` is the number of those in the config."""
        row = BY_TYPE[model_type]
        config = row.config(num_hidden_layers=6, out_indices=[count + embeddings for count in read])
        native = random_model(row.family.base.native_class(), config)
        dropped = compressed(native, flops=0.9, only=("layers",), drop_layers=3).model
        gone = dropped.config.collab_dropped_layers
        assert len(read) == 1 or not {count - 1 for count in read} & set(gone)
        left = [count - sum(layer < count for layer in gone) for count in read]
        assert list(dropped.config.out_indices) == [count + embeddings for count in left]
        dropped.save_pretrained(tmp_path)
        reloaded = type(dropped).from_pretrained(tmp_path)
        assert largest_difference(outputs(dropped), outputs(reloaded)) < 1e-5

    def test_a_head_keeps_what_it_has_for_the_layers_that_stay(self, tmp_path: Path) -> None:
        """ESM predicts contacts from every head of every layer, the first layer's first."""
        model = tiny_model(BY_TYPE["esm"], num_hidden_layers=4)
        dropped = compressed(model, flops=0.5, only=("layers",), drop_layers=2, healed=True).model
        left = [number for number in range(4) if number not in dropped.config.collab_dropped_layers]
        before, after = (each.contact_head.regression.weight for each in (model, dropped))
        assert torch.equal(before.unflatten(1, (4, -1))[:, left].flatten(1), after)
        dropped.save_pretrained(tmp_path)
        assert largest_difference(outputs(dropped), outputs(type(dropped).from_pretrained(tmp_path))) < 1e-5
        inputs = probe_inputs(model)
        contacts = dropped.predict_contacts(inputs["input_ids"], inputs["attention_mask"])
        assert contacts.isfinite().all()

    def test_no_layer_is_dropped_where_a_head_weighs_the_states_of_all(self) -> None:
        row = BY_TYPE["wav2vec2"]
        config = row.config(use_weighted_layer_sum=True, num_labels=3)
        model = random_model(Wav2Vec2ForSequenceClassification, config)
        assert not any(layer.dropped for layer in compressed(model, flops=0.6).report.layers)
        with pytest.raises(ConfigurationError, match="of which 0 can be dropped"):
            compressed(model, flops=0.6, drop_layers=1)

    def test_refitted_in_sequence_where_nothing_trains(self) -> None:
        """What is left of a layer corrects the errors before it; weights that are the original's stay as they are."""
        model = tiny_model(BERT, num_hidden_layers=4)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        alone = compressed(model, flops=0.5, drop_layers=2, only=("layers",), healed=True).report
        refitted = compressed(model, flops=0.5, drop_layers=2, only=("layers",)).report
        assert (alone.refitted, refitted.refitted) == (0, 4)
        assert refitted.agreement["embedding_cosine"] > alone.agreement["embedding_cosine"]
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())

    @pytest.mark.parametrize("dropped", often([((0,),), ((0, 1),), ((1,),)], {"(0, 1)"}))
    def test_refitted_whichever_layers_are_dropped(self, dropped: tuple[int, ...]) -> None:
        """Also where the first ones are, whose work is then that of the first that stays."""
        model = tiny_model(BERT, num_hidden_layers=4)
        with torch.no_grad():
            for number in range(4):  # those to be dropped do least
                scale = 0.05 if number in dropped else 1.0
                for name in ("attention.output.dense", "output.dense"):
                    model.get_submodule(f"encoder.layer.{number}.{name}").weight.mul_(scale)
        alone, refitted = (
            compressed(model, flops=1.0, drop_layers=len(dropped), only=("layers",), healed=healed).report
            for healed in (True, False)
        )
        assert tuple(number for number, layer in enumerate(refitted.layers) if layer.dropped) == dropped
        assert refitted.refitted > 0
        assert refitted.agreement["token_cosine"] > alone.agreement["token_cosine"]

    def test_budget_of_parameters_shares_dimensions(self) -> None:
        model = tiny_model(BERT)
        whole = sum(parameter.numel() for parameter in model.parameters())
        report = compressed(model, params=0.75, drop_layers=0).report
        assert report.parameters.after <= 0.75 * whole
        assert {layer.form for layer in report.layers if layer.rank < layer.full_rank} <= {"cp"}

    @pytest.mark.parametrize(
        ("model_type", "heads"),
        often(product(["esm", "modernbert", "llama"], [4, 5]), {"esm-5", "modernbert-4", "llama-5"}),
    )
    def test_budget_of_parameters_of_rotated_queries_and_keys(self, model_type: str, heads: int) -> None:
        """Shared dimensions are complex, and as many as were asked for: also where heads do not divide their number."""
        sizes = {"hidden_size": 8 * heads, "num_attention_heads": heads, "num_key_value_heads": heads}
        model = tiny_model(BY_TYPE[model_type], **sizes)
        whole = count_parameters(model)
        budget = 1 - 0.83 * collab.inspect(model).parameters["query_key"] / whole  # which takes the least ranks
        made = compressed(model, params=budget, only=("queries-keys",))
        ranks = [layer.rank for layer in made.report.layers]
        assert min(ranks) == 4
        assert ranks == [layer.rank for layer in collab.inspect(made).layers]
        assert made.report.parameters.after == count_parameters(made.model) <= budget * whole

    def test_native_widths(self) -> None:
        model = tiny_model(BERT, num_hidden_layers=3)
        compression = compressed(model, flops=0.6, native=True)
        kept = [layer for layer in compression.report.layers if not layer.dropped]
        assert len({layer.neurons for layer in kept}) == 1
        assert all(layer.rank == layer.full_rank for layer in kept)
        assert all(layer.value_width == layer.full_value_width for layer in kept)
        native = collab.expand(compression.model).model
        assert native.config.intermediate_size == kept[0].neurons
        assert sum(tensor.numel() for tensor in native.parameters()) < sum(
            tensor.numel() for tensor in model.parameters()
        )

    def test_speed_decides_the_arithmetic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every neuron takes the same time here, and all else a constant time, so that real time does not matter."""
        model = tiny_model(BERT, intermediate_size=512, num_hidden_layers=3)
        total = 3 * model.config.intermediate_size

        def time_in_turn(runs: Sequence[Run], **_: object) -> list[float]:
            neurons = [getattr(run.config, "collab_feed_forward", [total]) for run, _ in runs]
            return [0.2 + 0.8 * sum(left) / total for left in neurons]

        monkeypatch.setattr(timing, "time_in_turn", time_in_turn)
        report = compressed(model, speedup=1.5, only=("feed-forward",)).report
        assert report.speedup == pytest.approx(1.5, rel=0.04)
        assert sum(layer.neurons for layer in report.layers) / total == pytest.approx((1 / 1.5 - 0.2) / 0.8, abs=0.03)
        with pytest.raises(BudgetError, match="speedup=6 cannot be reached"):
            compressed(model, speedup=6.0, only=("feed-forward",))

    def test_speed_is_that_of_evaluation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also of a model that is in training mode, and stays in it."""
        model = tiny_model(BERT, intermediate_size=512).train()
        modes = set()

        def time_in_turn(runs: Sequence[Run], **_: object) -> list[float]:
            modes.update(module.training for run, _ in runs for module in run.modules())
            return [0.2 + 0.8 * sum(getattr(run.config, "collab_feed_forward", [1024])) / 1024 for run, _ in runs]

        monkeypatch.setattr(timing, "time_in_turn", time_in_turn)
        made = compressed(model, speedup=1.5, only=("feed-forward",)).model
        assert modes == {False}
        assert all(module.training for each in (model, made) for module in each.modules())

    def test_time_of_attention_is_that_of_the_wider_part(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Queries, keys and values then become narrower together, or not at all."""
        model = tiny_model(BERT, hidden_size=64)

        def time_in_turn(runs: Sequence[Run], **_: object) -> list[float]:
            models = [getattr(run.config, "collab_layers", [{"rank": 64}] * 2) for run, _ in runs]
            return [
                1 + sum(max(entry["rank"] // 4, entry.get("value_width") or 16) for entry in entries)
                for entries in models
            ]

        monkeypatch.setattr(timing, "time_in_turn", time_in_turn)
        report = compressed(model, speedup=1.3, drop_layers=0).report
        assert any(layer.value_width < layer.full_value_width for layer in report.layers)
        assert all((layer.rank < layer.full_rank) == (layer.value_width < 16) for layer in report.layers)

    def test_what_is_healed_drops_more_layers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All layers of a random model matter, so the part that healing recovers is all of it here."""
        monkeypatch.setattr(compressions, "RECOVERED", 1.0)
        model = tiny_model(BERT, num_hidden_layers=4)
        reports = [compressed(model, flops=0.5, healed=healed).report for healed in (False, True)]
        kept, dropped = (sum(layer.dropped for layer in report.layers) for report in reports)
        assert kept == 0
        assert dropped > 0

    def test_layers_to_drop_follow_from_healing_for_a_short_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What healing recovers is tried where several numbers are likely; the original and its weights stay."""
        monkeypatch.setattr(trials, "_RECOVERIES", (0.0, 1.0))
        native = tiny_model(BERT, num_hidden_layers=4)
        before = {name: tensor.clone() for name, tensor in native.state_dict().items()}
        config = collab.CompressionConfig(flops=0.5, healed=True)
        calibration = collab.calibrate(native, batches(native, 12))

        def breaks(dropped: bool) -> Callable[[PreTrainedModel], None]:
            def heal(model: PreTrainedModel) -> None:
                """Ruins models that lack layers, or those that do not."""
                if (model.config.num_hidden_layers < 4) == dropped:
                    for parameter in model.parameters():
                        parameter.data.normal_(generator=torch.Generator().manual_seed(0))

            return heal

        for dropped in (False, True):
            result = collab.compress(native, config, calibration, healer=breaks(dropped))
            report = result.report
            count = sum(layer.dropped for layer in report.layers)
            losses = {trial.dropped: trial.healed_loss for trial in report.trials}
            assert (count > 0) != dropped
            assert len(losses) > 1
            assert list(losses) == sorted(losses)
            assert count == min(losses, key=lambda each: losses[each])
            assert report.flops.ratio <= 0.5
            assert f"{losses[count]:.4f} with {count or 'none'} dropped" in report.details()
            assert all(torch.equal(tensor, before[name]) for name, tensor in native.state_dict().items())
        fixed = replace(config, drop_layers=1)
        report = collab.compress(native, fixed, calibration, healer=breaks(True)).report
        assert not report.trials
        assert "short time" not in report.details()
        with pytest.raises(ConfigurationError, match="healed=True"):
            collab.compress(native, replace(config, healed=False), calibration, healer=breaks(True))

    def test_command_tries_how_many_layers_to_drop(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("accelerate", reason="the train extra is not installed")
        monkeypatch.setattr(trials, "_RECOVERIES", (0.0, 1.0))
        for name in ("_TRIAL", "_TRIAL_ROWS"):
            monkeypatch.setattr(importlib.import_module("collab.checkpoints.heal"), name, 1)
        save_with_tokenizer(tiny_model(BERT, num_hidden_layers=4), tmp_path / "in")
        (tmp_path / "text.txt").write_text("\n".join(TEXT))
        text = collab.DataSource(str(tmp_path / "text.txt"))
        tried: dict[int, list[Any]] = {}
        phases: set[str] = set()
        for steps in (2, 10):
            run = collab.RunOptions(steps=steps, batch_size=1, evaluations=1, learning_rate=1e-4)
            collab.checkpoints.compress(
                str(tmp_path / "in"),
                tmp_path / "out",
                collab.CompressionConfig(flops=0.5),
                calibration=collab.CalibrationRequest(text),
                heal=collab.HealRequest(text, collab.HealOptions("layers", run=run)),
                save_options=collab.SaveOptions(overwrite=steps > 2),
                progress=lambda what, done, total: phases.add(what),
            )
            report = json.loads((tmp_path / "out" / "collab_report.json").read_text())
            tried[steps] = report["history"][0]["trials"]
            assert ("trying numbers of dropped layers" in phases) == (steps > 2)
        assert tried[2] == []
        assert len(tried[10]) > 1
        assert {path.name for path in tmp_path.iterdir()} == {"in", "out", "text.txt"}

    def test_an_interrupted_command_goes_on_with_its_weights(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though they are rounded otherwise by another number of threads, or on another machine."""
        pytest.importorskip("accelerate", reason="the train extra is not installed")
        save_with_tokenizer(tiny_model(BERT), tmp_path / "in")
        run = collab.RunOptions(steps=4, batch_size=8, evaluations=4, learning_rate=1e-4)
        heal = collab.HealRequest("synthetic", collab.HealOptions("layers", 64, run=run))
        convert, build = collab.convert, candidates.Candidates.build

        def stop(what: str, done: int, total: int | None) -> None:
            if what.startswith("training") and done == 2:
                raise KeyboardInterrupt

        def compressed(output: str, progress: Any = no_progress) -> Any:
            config = collab.CompressionConfig(flops=0.5, drop_layers=0)
            return collab.checkpoints.compress(
                str(tmp_path / "in"), tmp_path / output, config, heal=heal, progress=progress
            )

        def converted(output: str, progress: Any = no_progress) -> Any:
            config = collab.ConversionConfig(rank=8, refine="none")
            return collab.checkpoints.convert(
                str(tmp_path / "in"), tmp_path / output, config, heal=heal, progress=progress
            )

        def rounded(model: Any) -> None:
            weight = model.get_submodule("encoder.layer.0.attention.self.query").weight
            weight.data = weight * (1 + 1e-6)

        def built(self: candidates.Candidates, widths: Any) -> Any:
            model = build(self, widths)
            rounded(model)
            return model

        def solved(*arguments: Any, **more: Any) -> Any:
            made = convert(*arguments, **more)
            rounded(made.model)
            return made

        for command in (compressed, converted):
            name = command.__name__
            whole = command(f"{name}-whole").model.state_dict()
            with pytest.raises(KeyboardInterrupt):
                command(name, stop)
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(candidates.Candidates, "build", built)
                elsewhere.setattr(importlib.import_module("collab.checkpoints.convert"), "convert_model", solved)
                resumed = command(name).model.state_dict()
            assert all(torch.equal(tensor, whole[key]) for key, tensor in resumed.items())
            assert not (tmp_path / f"{name}.training").exists()

    @pytest.mark.exhaustive
    def test_an_interrupted_command_goes_on_with_its_widths(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though times, which the widths follow from, are measured otherwise; not with --restart."""
        pytest.importorskip("accelerate", reason="the train extra is not installed")
        save_with_tokenizer(tiny_model(BERT), tmp_path / "in")
        chosen: list[int] = []
        within = compressions.Compressions.within

        def measured(self: compressions.Compressions, budget: Budget, dropped: int | None = None) -> PlanOption:
            chosen.append(len(chosen))
            return within(self, Budget("flops", 0.55 - 0.05 * len(chosen)), dropped)

        def stop(what: str, done: int, total: int | None) -> None:
            if what.startswith("training") and done == 2:
                raise KeyboardInterrupt

        def command(restart: bool = False, progress: Any = no_progress, rows: Any = "synthetic") -> Any:
            run = collab.RunOptions(steps=4, batch_size=8, evaluations=2, learning_rate=1e-4)
            options = collab.SaveOptions(restart=restart, overwrite=True)
            config = collab.CompressionConfig(flops=0.5, drop_layers=0)
            heal = collab.HealRequest("synthetic", collab.HealOptions("layers", 64, run=run))
            made = collab.checkpoints.compress(
                str(tmp_path / "in"),
                tmp_path / "out",
                config,
                calibration=collab.CalibrationRequest(rows),
                heal=heal,
                save_options=options,
                progress=progress,
            )
            return made.step(Compression)

        monkeypatch.setattr(compressions.Compressions, "within", measured)
        with pytest.raises(KeyboardInterrupt):
            command(progress=stop)
        assert list((tmp_path / "out.training").glob("chosen-*.json"))
        resumed = command()
        assert len(chosen) == 1
        assert resumed.flops.ratio == pytest.approx(0.5, abs=0.05)
        assert not (tmp_path / "out.training").exists()
        with pytest.raises(KeyboardInterrupt):
            command(progress=stop)
        again = command(restart=True)
        assert len(chosen) == 3
        assert again.flops.ratio < resumed.flops.ratio
        with pytest.raises(KeyboardInterrupt):
            command(progress=stop)
        (tmp_path / "text.txt").write_text("\n".join(TEXT))
        with pytest.raises(collab.errors.TrainingError, match="other settings"):
            command(rows=collab.DataSource(str(tmp_path / "text.txt")))
        assert len(chosen) == 4, "it is refused before widths are chosen"

    def test_parameters_are_trainable_as_they_were(self) -> None:
        """Also those that are refitted, and those of layers that have other numbers now."""
        model = tiny_model(BERT, num_hidden_layers=4)
        model.encoder.layer[1].requires_grad_(False)
        calibration = collab.calibrate(model, batches(model, 12))
        made = collab.compress(model, collab.CompressionConfig(flops=0.5, drop_layers=2), calibration)
        assert made.report.refitted > 0
        left = [number for number, layer in enumerate(made.report.layers) if not layer.dropped]
        for number, layer in zip(left, made.model.encoder.layer, strict=True):
            named = (layer.attention.output, layer.intermediate, layer.output)  # what is narrower may have other names
            flags = {parameter.requires_grad for module in named for parameter in module.parameters()}
            assert flags == {number != 1}

    @in_pairs("model_type", ["bert", "vit", "eurobert"], "settings", [{"flops": 0.8}, {"params": 0.9}])
    def test_new_factors_alone_are_trainable_in_a_frozen_model(self, model_type: str, settings: dict) -> None:
        """As after a conversion."""
        model = tiny_model(BY_TYPE[model_type]).requires_grad_(False)
        made = compressed(model, **settings, drop_layers=0).model
        layers = [layer.name for layer in attention_layers(made)]
        factors = tuple(f"{name}.{part}" for name in layers for part in FACTORS)
        for name, parameter in made.named_parameters():
            assert parameter.requires_grad == name.startswith(factors), name

    @given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8))
    def test_likely_numbers_are_those_that_some_recovery_makes_best(self, losses: list[tuple[float, float]]) -> None:
        drops = [trials.Drop(Allocation((), 0.0, loss), of_layers) for loss, of_layers in losses]
        likely = trials.likely(drops)
        for recovered in np.linspace(*trials._RECOVERIES, 17):
            least = min(drop.loss(recovered) for drop in drops)
            assert min(drop.loss(recovered) for drop in likely) == pytest.approx(least)
        assert [drop.of_layers for drop in likely] == sorted({drop.of_layers for drop in likely})

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=6, unique=True), st.data())
    def test_search_ends_at_the_one_minimum(self, losses: list[float], data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(losses)))
        valley = sorted(losses[:place], reverse=True) + sorted(losses[place:])
        start = data.draw(st.integers(0, len(valley) - 1))
        measured = trials.lowest(len(valley), start, valley.__getitem__)
        assert min(measured.values()) == min(valley)
        assert all(valley[number] == loss for number, loss in measured.items())

    def test_layers_of_several_modules_are_dropped_whole(self) -> None:
        """T5 keeps attention and feed-forward layer in a list of their own; its first layer has the position bias."""
        config = BY_TYPE["t5"].config(num_layers=4)
        native = T5EncoderModel(config).eval()
        report = compressed(native, flops=0.5, drop_layers=2).report
        assert not report.layers[0].dropped
        assert sum(layer.dropped for layer in report.layers) == 2
        assert report.layers[1].name == "encoder.block.1"

    def test_layers_before_the_one_that_changes_are_not_computed_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever number of them is kept, the widths and what they are predicted to lose are the same."""
        model = tiny_model(BERT)
        calibration = collab.calibrate(model, batches(model, 12))
        calls: list[int] = []
        losses = []
        for kept in (held_out._KEPT, 0):
            monkeypatch.setattr(held_out, "_KEPT", kept)
            calls.append(0)

            def count(module: torch.nn.Module, *given: Any, calls: list[int] = calls) -> None:
                calls[-1] += isinstance(module, torch.nn.LayerNorm)

            with torch.nn.modules.module.register_module_forward_hook(count):
                report = collab.compress(model, collab.CompressionConfig(flops=0.6), calibration).report
            losses.append((report.predicted_loss, report.layers))
        assert losses[0] == losses[1]
        assert calls[0] < calls[1]

    def test_same_widths_and_weights_every_time(self) -> None:
        model = tiny_model(BERT)
        first, second = (compressed(model, flops=0.6) for _ in range(2))
        assert first.report.layers == second.report.layers
        assert largest_difference(outputs(first.model), outputs(second.model)) == 0

    def test_classifier_is_judged_by_its_classes(self) -> None:
        model = random_model(BertForSequenceClassification, BERT.config())
        report = compressed(model, flops=0.7).report
        assert report.agreement is not None
        assert {"kl", "top1"} <= set(report.agreement)

    def test_healing_comes_closer_without_dropped_layers(self) -> None:
        pytest.importorskip("accelerate", reason="the train extra is not installed")
        model = tiny_model(BERT, num_hidden_layers=3)
        compression = compressed(model, flops=0.5, drop_layers=1)
        options = collab.HealOptions(
            "layers", 96, run=collab.RunOptions(1e-3, batch_size=8, steps=24, evaluations=2, device="cpu")
        )
        healing = collab.heal(compression.model, model, options=options)
        assert healing.report.after["loss"] < healing.report.before["loss"]

    def test_heads_can_be_pruned_afterwards(self) -> None:
        model = compressed(tiny_model(BERT), flops=0.6, drop_layers=0).model
        name = collab.inspect(model).layers[0].name
        pruned = collab.prune(model, {name: [0, 2]}).model
        assert pruned.get_submodule(name).value_width == model.get_submodule(name).value_width
        expansion = collab.expand(pruned)
        assert expansion.report.output_difference < 1e-5 * max(1.0, expansion.report.output_scale)

    def test_plan_predicts_more_loss_for_less(self) -> None:
        model = tiny_model(BERT)
        calibration = collab.calibrate(model, batches(model, 12))
        plan = collab.plan(model, calibration, collab.CompressionConfig(flops=0.5), fractions=(0.8, 0.6, 0.0001))
        assert [option.budget for option in plan.options] == [0.8, 0.6]
        assert all(option.reached <= option.budget for option in plan.options)
        assert plan.options[0].error < plan.options[1].error
        compression = collab.compress(model, collab.CompressionConfig(flops=0.6), calibration)
        report = compression.report
        assert plan.options[1].error == report.predicted_loss
        assert plan.options[1].reached == plan.options[1].flops[128] == report.flops.ratio
        assert plan.options[1].model == report.parameters.ratio
        assert plan.options[1].form == "concat"
        rows = zip(plan.layers.items(), plan.options[1].widths, report.layers, strict=True)
        for (name, full), left, layer in rows:
            parts = ("queries-keys", "values", "feed-forward")
            before = (layer.full_rank, layer.full_value_width, layer.full_neurons)
            after = (layer.rank, layer.value_width, layer.neurons)
            assert (name, full) == (layer.name, dict(zip(parts, before, strict=True)))
            assert left == (None if layer.dropped else dict(zip(parts, after, strict=True)))

    def test_plan_of_budgets_of_parameters_and_of_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every weight takes the same time here, so that real time does not matter."""

        def time_in_turn(runs: Sequence[Run], **_: object) -> list[float]:
            return [sum(parameter.numel() for parameter in run.parameters()) / 1e6 for run, _ in runs]

        monkeypatch.setattr(timing, "time_in_turn", time_in_turn)
        model = tiny_model(BERT)
        calibration = collab.calibrate(model, batches(model, 12))
        plan = collab.plan(model, calibration, collab.CompressionConfig(params=0.5), fractions=(0.8, 0.7))
        assert plan.unit == "params"
        for option in plan.options:
            assert option.form == "cp"
            assert option.model == option.reached <= option.budget
        plan = collab.plan(model, calibration, collab.CompressionConfig(speedup=1.1), fractions=(0.9,))
        assert plan.unit == "seconds"
        tokens = model.config.max_position_embeddings  # fewer than asked for
        assert plan.options[0].faster[tokens] == pytest.approx(1 / plan.options[0].reached)

    def test_plan_without_rows_or_within_reach(self) -> None:
        model = tiny_model(BERT)
        with pytest.raises(CalibrationError, match="needs rows"):
            collab.plan(model, None, collab.CompressionConfig(flops=0.5))
        calibration = collab.calibrate(model, batches(model, 12))
        with pytest.raises(BudgetError, match=r"flops=0\.001 cannot be reached"):
            collab.plan(model, calibration, collab.CompressionConfig(flops=0.5), fractions=(0.0001, 0.001))


class TestRefusals:
    def test_budget_that_cannot_be_reached(self) -> None:
        model = tiny_model(BERT)
        with pytest.raises(BudgetError, match=r"is left\. Ask for more"):
            compressed(model, flops=0.001)

    def test_too_many_layers_to_drop(self) -> None:
        with pytest.raises(ConfigurationError, match="One must stay"):
            compressed(tiny_model(BERT), flops=0.5, drop_layers=2)
        with pytest.raises(ConfigurationError, match="share weights"):
            compressed(tiny_model(BY_TYPE["albert"], num_hidden_groups=1), flops=0.5, drop_layers=1)

    def test_calibration_without_rows(self) -> None:
        model = tiny_model(BERT)
        calibration = collab.calibrate(model, lambda model: [model(**batch) for batch in batches(model, 3)])
        with pytest.raises(CalibrationError, match="needs the rows"):
            collab.compress(model, collab.CompressionConfig(flops=0.5), calibration)

    def test_few_tokens_are_noted_and_finite(self) -> None:
        model = tiny_model(BERT, intermediate_size=256)
        compression = compressed(model, flops=0.4)
        assert "Use more rows" in compression.report.notes[-1]
        assert all(bool(tensor.isfinite().all()) for tensor in compression.model.state_dict().values())

    def test_what_cannot_be_is_refused_before_anything_is_calibrated(self, tmp_path: Path) -> None:
        save_with_tokenizer(tiny_model(BERT, is_decoder=True, add_cross_attention=True), tmp_path / "in")
        seen: list[str] = []
        with pytest.raises(UnsupportedArchitectureError, match="without its encoder"):
            collab.checkpoints.compress(
                str(tmp_path / "in"),
                tmp_path / "out",
                collab.CompressionConfig(flops=0.5),
                progress=lambda what, done, total: seen.append(what),
            )
        assert set(seen) == {"loading the model"}
        assert not (tmp_path / "out").exists()

    def test_decoder_with_cross_attention(self) -> None:
        model = tiny_model(BERT, is_decoder=True, add_cross_attention=True)
        rows = [batch | {"encoder_hidden_states": torch.randn(2, 5, 32)} for batch in batches(model, 12)]
        calibration = collab.calibrate(model, rows)
        with pytest.raises(UnsupportedArchitectureError, match="cross-attention"):
            collab.compress(model, collab.CompressionConfig(flops=0.5), calibration)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({}, "one budget"),
            ({"flops": 0.5, "params": 0.5}, "flops and params"),
            ({"flops": 0}, "above 0"),
            ({"flops": 1.5}, "at most 1"),
            ({"speedup": 1}, "above 1"),
            ({"flops": 0.5, "only": ()}, "only must name"),
            ({"flops": 0.5, "only": ("heads",)}, "only must name"),
            ({"flops": 0.5, "only": ("values",), "drop_layers": 1}, "does not name layers"),
            ({"flops": 0.5, "drop_layers": -1}, "at least 0"),
            ({"flops": 0.5, "length": 0}, "at least 1"),
            ({"flops": 0.5, "native": True, "only": ("values",)}, "native=True"),
        ],
    )
    def test_settings(self, settings: dict, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            collab.CompressionConfig(**settings)


class TestAlgebra:
    def test_elimination_gives_the_least_squares_error(self) -> None:
        """The loss after a removal is the error of the best refit of what stays, by dense least squares."""
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(400, 12, generator=generator, dtype=torch.float64) @ torch.randn(
            12, 12, generator=generator, dtype=torch.float64
        )
        inputs = inputs - inputs.mean(0)
        weight = torch.randn(12, 5, generator=generator, dtype=torch.float64)
        order, losses = eliminate(inputs.T @ inputs / len(inputs), weight, step=2)
        assert sorted(order) == list(range(12))
        for removed in (2, 6, 10):
            kept = order[removed:]
            refit = torch.linalg.lstsq(inputs[:, kept], inputs @ weight).solution
            error = (inputs @ weight - inputs[:, kept] @ refit).square().sum() / len(inputs)
            assert losses[removed // 2] == pytest.approx(float(error), rel=0.02)

    def test_spread_beside_a_large_mean(self) -> None:
        generator = torch.Generator().manual_seed(0)
        inputs = 1000 + torch.randn(4000, 6, generator=generator)
        statistics = ProjectionStatistics(torch.nn.Linear(6, 2))
        for part in inputs.split(1000):
            statistics.add(part, torch.randn(len(part), 2, generator=generator))
        statistics.add_other_processes(0)
        expected = torch.cov(inputs.double().T, correction=0)
        torch.testing.assert_close(statistics.covariance, expected, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_refitted(self, dtype: torch.dtype) -> None:
        model = tiny_model(BERT).to(dtype)
        assert compressed(model, flops=0.5, drop_layers=1, only=("layers",)).report.refitted > 0

    @pytest.mark.parametrize("bias", [True, False])
    def test_only_a_bias_takes_over_the_mean(self, bias: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        inputs = 3 + torch.randn(400, 6, generator=generator)
        statistics = ProjectionStatistics(torch.nn.Linear(6, 2, bias=bias))
        statistics.add(inputs, torch.randn(400, 2, generator=generator))
        statistics.add_other_processes(0)
        mean = inputs.double().mean(0) if bias else torch.zeros(6).double()
        torch.testing.assert_close(statistics.mean, mean)
        centred = inputs.double() - mean
        torch.testing.assert_close(statistics.covariance, centred.T @ centred / 400, rtol=1e-4, atol=1e-4)

    def test_allocation_is_optimal_on_convex_curves(self) -> None:
        generator = np.random.default_rng(0)
        curves = []
        for _ in range(3):
            slopes = np.sort(generator.uniform(0.1, 2, 4)).cumsum()
            curves.append([[Point({"values": 5 - i}, -float(i), float(slopes[:i].sum())) for i in range(5)]])
        for budget in range(4, 15):
            found = allocate(curves, {}, 15.0, budget)
            best = min(
                sum(point.loss for point in chosen)
                for chosen in itertools.product(*(curve for (curve,) in curves))
                if 15 + sum(point.cost for point in chosen) <= budget
            )
            assert found.cost <= budget
            assert found.loss == pytest.approx(best)

    @pytest.mark.parametrize("power", [1, 2])
    def test_allocation_that_exhausts_its_budget_leaves_nothing_to_gain(self, power: int) -> None:
        """Ranks cost what they are, or their squares, as in the tucker form."""
        generator = np.random.default_rng(power)
        ranks = range(6, 0, -1)
        for _ in range(30):
            energies = [np.sort(generator.exponential(size=6)) for _ in range(3)]
            losses = [{rank: float(own[: 6 - rank].sum()) for rank in ranks} for own in energies]
            curves = [
                [[Point({"queries-keys": rank}, rank**power - 6**power, loss) for rank, loss in own.items()]]
                for own in losses
            ]
            full = 3 * 6**power
            budget = int(generator.integers(3, full))
            plain, spent = (allocate(curves, {}, full, budget, exhaust=exhaust) for exhaust in (False, True))
            left = [layer["queries-keys"] for layer in spent.widths]
            assert spent.cost == sum(rank**power for rank in left) <= budget
            assert spent.loss == pytest.approx(sum(own[rank] for own, rank in zip(losses, left, strict=True)))
            assert spent.loss <= plain.loss + 1e-12
            assert all(rank == 6 or (rank + 1) ** power - rank**power > budget - spent.cost for rank in left)
            best = min(
                sum(point.loss for point in chosen)
                for chosen in itertools.product(*(curve for (curve,) in curves))
                if full + sum(point.cost for point in chosen) <= budget
            )
            step = max(float(own.max()) for own in energies)
            assert best - 1e-12 <= spent.loss <= best + step

    def test_even_heads(self) -> None:
        """Every head keeps its own largest singular values."""
        generator = torch.Generator().manual_seed(0)
        query, key = (torch.randn(12, 16, generator=generator, dtype=torch.float64) for _ in range(2))
        query[:, :4] *= 100  # the first head has the largest values of all
        tensor = HeadTensor(query, key, 4)
        even = decompose(tensor, "concat", 8, collab.SolverOptions(even_heads=True)).factors
        assert even.head_ranks == (2, 2, 2, 2)
        assert decompose(tensor, "concat", 8).factors.head_ranks != (2, 2, 2, 2)
        for h in range(4):
            mine = slice(4 * h, 4 * h + 4)
            expected = torch.linalg.svdvals(query[:, mine] @ key[:, mine].T)[:2]
            torch.testing.assert_close(torch.linalg.svdvals(even.head(h))[:2], expected)

    def test_even_heads_are_of_heads_that_share_nothing(self) -> None:
        """Others start where the error is least, or they end at a worse one."""
        generator = torch.Generator().manual_seed(0)
        query, key = (torch.randn(12, 16, generator=generator, dtype=torch.float64) for _ in range(2))
        tensor = HeadTensor(query, key, 4)
        even = decompose(tensor, "cp", 8, collab.SolverOptions(even_heads=True))
        assert even.error == decompose(tensor, "cp", 8).error

    def test_values_that_are_all_zero(self) -> None:
        """As those are of heads that were removed, after an expansion."""
        native = tiny_model(BERT)
        for name, parameter in native.named_parameters():
            if "layer.0" in name and "value" in name:
                parameter.data.zero_()
        compressed = collab.compress(
            native, collab.CompressionConfig(flops=0.5), collab.calibrate(native, batches(native))
        ).model
        assert all(parameter.isfinite().all() for parameter in compressed.parameters())

    def test_hull_leaves_out_what_is_never_best(self) -> None:
        costs_losses = ((0.0, 0.0), (-1.0, 3.0), (-2.0, 2.0), (1.0, 9.0))
        curve = [Point({"values": 4 - i}, cost, loss) for i, (cost, loss) in enumerate(costs_losses)]
        assert [point.widths["values"] for point in convex_hull(curve)] == [4, 2]


class TestCommand:
    def test_writes_what_reloads_anywhere(self, tmp_path: Path) -> None:
        folder = save_with_tokenizer(tiny_model(BERT, num_hidden_layers=3), tmp_path / "model")
        text = tmp_path / "text.csv"
        text.write_text("\n".join(["words", *TEXT]))
        out = tmp_path / "out"
        result = run(
            *("compress", folder, out, "--flops", "0.5", "--calibration", text, "--text-column", "words"),
            *("--heal-steps", "6", "--drop-layers", "1"),
        )
        assert result.exit_code == 0, result.output
        assert f"--precision int8 --calibration {text} --text-column words\n" in result.stdout, "of the next command"
        report = json.loads((out / "collab_report.json").read_text())
        assert [step["step"] for step in report["history"]] == ["compress", "heal"]
        assert report["history"][0]["flops"]["ratio"] <= 0.5
        assert "## Compression" in (out / "README.md").read_text()
        model = AutoModel.from_pretrained(out)
        job = {"folder": out, "auto_class": "AutoModel", "inputs": probe_inputs(model)}
        (apart,) = outputs_without_collab([job], tmp_path)
        assert largest_difference(outputs(model), apart) < 1e-6
        assert not (tmp_path / "out.training").exists()
        native = run("expand", out, tmp_path / "native")
        assert native.exit_code == 0, native.output
        assert type(AutoModel.from_pretrained(tmp_path / "native")) is BertModel

    def test_plan_of_the_whole_model(self, tmp_path: Path) -> None:
        folder = save_with_tokenizer(tiny_model(BERT), tmp_path / "model")
        result = run("plan", folder, "--whole", "--flops", "0.6", "--json", "--calibration-samples", "64")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["options"][0]["reached"] <= 0.6
        budgets = ("--params", "0.9", "--params", "0.8", "--figure", tmp_path / "plan.png")
        result = run("plan", folder, "--whole", *budgets, "--calibration-samples", "64")
        assert result.exit_code == 0, result.output
        for expected in ("params", "left", "queries and keys", "values of a head", "neurons", "params 0.8", " of 32"):
            assert expected in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80
        assert (tmp_path / "plan.png").stat().st_size > 10_000

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--whole", "--flops", "0.5", "--params", "0.5"], "flops and params were given"),
            (["--whole", "--content", "folded"], "belong to a plan without --whole"),
            (["--flops", "0.5"], "--flops counts only with --whole"),
            (["--whole", "--calibration", "none"], "needs rows"),
        ],
    )
    def test_bad_plans(self, options: list[str], message: str, tmp_path: Path) -> None:
        folder = save_with_tokenizer(tiny_model(BERT), tmp_path / "model")
        result = run("plan", folder, *options)
        assert result.exit_code in (1, 2)
        assert message in result.stderr

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "one budget"),
            (["--flops", "0.5", "--only", "heads"], "does not name parts"),
            (["--flops", "0.5", "--heal", "x.txt", "--heal-steps", "0"], "--heal-steps is 0"),
            (["--flops", "0.5", "--heal-fragments", "0", "--heal-steps", "0"], "--heal-steps is 0"),
            (["--flops", "0.5", "--calibration", "none"], "needs rows"),
        ],
    )
    def test_bad_options(self, options: list[str], message: str, tmp_path: Path) -> None:
        folder = save_with_tokenizer(tiny_model(BERT), tmp_path / "model")
        result = run("compress", folder, tmp_path / "out", *options)
        assert result.exit_code in (1, 2)
        assert message in result.stderr
        assert not (tmp_path / "out").exists()
