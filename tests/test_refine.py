"""Refinement: every layer comes closer to the original's output, or stays what it was; nothing else changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from tiny import (
    BERT,
    BY_TYPE,
    Row,
    batches,
    changed,
    converted,
    every_form,
    few_kinds,
    full_rank,
    largest_difference,
    random_model,
    state,
    tiny_model,
)
from transformers import PreTrainedModel

import collab
from collab.models.families import collaborative_layers
from collab.training.refine import FACTORS, RefineOptions, refine

FEW = RefineOptions(steps=10, rows=8)


def pair(row: Row = BERT, **config: Any) -> tuple[PreTrainedModel, PreTrainedModel, list[dict[str, torch.Tensor]]]:
    """A tiny model, its conversion by the weights and batches for both."""
    original = tiny_model(row)
    model = converted(original, **config)
    return model, original, batches(original)


class TestLayers:
    @few_kinds
    def test_come_closer_in_every_layer(self, row: Row) -> None:
        model, original, data = pair(row)
        before, native = state(model), state(original)
        refinement = refine(model, original, data, data, options=FEW)
        assert list(refinement.report.layers) == list(collaborative_layers(model))
        assert all(layer.kept and layer.after < layer.before for layer in refinement.report.layers.values())
        factors = {
            f"{name}.{parameter}"
            for name, layer in collaborative_layers(model).items()
            for parameter, _ in layer.named_parameters()
            if parameter.partition(".")[0] in FACTORS
        }
        assert changed(model, before)
        assert changed(model, before) <= factors
        assert not changed(original, native)

    @every_form
    @pytest.mark.parametrize("content", ["exact", "folded"])
    def test_come_closer_in_every_form(self, form: str, content: str) -> None:
        model, original, data = pair(form=form, content=content)
        before = state(model)
        assert refine(model, original, data, data, options=FEW).report.improved
        kinds = {name.rpartition("self.")[2].partition(".")[0] for name in changed(model, before)}
        expected = {"query", "key"} | ({"mixing"} if form != "concat" else set())
        assert kinds == expected | {"content_bias" if content == "exact" else "query_offset"}

    def test_whole_model_comes_closer(self) -> None:
        model, original, data = pair()
        inputs = data[0]
        with torch.no_grad():
            before = (model(**inputs).last_hidden_state - original(**inputs).last_hidden_state).norm()
            refine(model, original, data, data, options=RefineOptions(steps=60, rows=16))
            after = (model(**inputs).last_hidden_state - original(**inputs).last_hidden_state).norm()
        assert after < before

    @every_form
    def test_exact_ones_stay_exact(self, form: str) -> None:
        model, original, data = pair(form=form, rank=full_rank(tiny_model(BERT)))
        before = state(model)
        refinement = refine(model, original, data, data, options=FEW)
        assert not refinement.report.improved
        assert not changed(model, before)
        assert all(layer.error < 1e-9 for layer in refinement.report.layers.values())

    def test_are_restored_where_held_out_rows_got_worse(self) -> None:
        """Steps far too large spoil every layer."""
        model, original, data = pair()
        before = state(model)
        refinement = refine(model, original, data, options=RefineOptions(steps=2, learning_rate=0.99, rows=1))
        for name, layer in refinement.report.layers.items():
            assert layer.kept == (layer.after < layer.before)
            assert layer.error == min(layer.before, layer.after)
            assert any(changed_name.startswith(name) for changed_name in changed(model, before)) == layer.kept
        assert not all(layer.kept for layer in refinement.report.layers.values())

    def test_stay_what_they_were_without_consent(self) -> None:
        model, original, data = pair()
        before = state(model)
        names = list(collaborative_layers(model))
        refinement = refine(
            model,
            original,
            data,
            data,
            options=FEW,
            accept=lambda name, layer: name == names[0] and layer.spec.rank == 8,
        )
        assert [layer.kept for layer in refinement.report.layers.values()] == [True, False]
        assert all(name.startswith(names[0]) for name in changed(model, before))

    def test_error_is_that_of_the_output(self) -> None:
        """Against a computation with the whole models, whose first layers have the same inputs."""
        model, original, data = pair()
        outputs: dict[str, torch.Tensor] = {}
        for name, one in (("original", original), ("model", model)):
            one.encoder.layer[0].attention.output.dense.register_forward_hook(
                lambda module, args, output, name=name: outputs.update({name: output})
            )
        with torch.no_grad():
            original(**data[0]), model(**data[0])
        seen = data[0]["attention_mask"].bool()
        target, actual = outputs["original"][seen], outputs["model"][seen]
        expected = (actual - target).square().sum() / (target - target.mean(0)).square().sum()
        refinement = refine(model, original, data[1:], data[:1], options=RefineOptions(steps=1))
        name = next(iter(refinement.report.layers))
        assert refinement.report.layers[name].before == pytest.approx(float(expected), rel=1e-4)

    def test_shared_ones_learn_from_every_pass(self) -> None:
        original = tiny_model(BY_TYPE["albert"], num_hidden_groups=1, inner_group_num=1)
        model = converted(original)
        refinement = refine(model, original, batches(original), batches(original), options=FEW)
        assert len(refinement.report.layers) == 1
        assert refinement.report.improved

    def test_cross_attention(self) -> None:
        original = random_model(transformers.BertLMHeadModel, BERT.config(is_decoder=True, add_cross_attention=True))
        model = converted(original)
        refinement = refine(model, original, batches(original), batches(original), options=FEW)
        assert len(refinement.report.layers) == 4
        assert all(layer.kept for layer in refinement.report.layers.values())

    def test_pruned_ones(self) -> None:
        original = tiny_model(BERT)
        names = list(collab.calibrate(original, batches(original, 4)).moments)
        model = converted(original)
        model = collab.prune(model, {names[0]: [], names[1]: [0, 2]}).model
        refinement = refine(model, original, batches(original), batches(original), options=FEW)
        assert list(refinement.report.layers) == names[1:]
        assert refinement.report.improved


class TestModels:
    def test_are_left_in_their_modes(self) -> None:
        model, original, data = pair()
        original.train()
        original.encoder.layer[0].eval()
        model.train()
        frozen = next(model.parameters()).requires_grad_(False)
        flags = [[parameter.requires_grad for parameter in one.parameters()] for one in (model, original)]
        modes = [[module.training for module in one.modules()] for one in (model, original)]
        kernels = [one.config._attn_implementation for one in (model, original)]
        refine(model, original, data, data, options=FEW)
        assert not frozen.requires_grad
        assert flags == [[parameter.requires_grad for parameter in one.parameters()] for one in (model, original)]
        assert modes == [[module.training for module in one.modules()] for one in (model, original)]
        assert kernels == [one.config._attn_implementation for one in (model, original)]
        for one in (model, original):
            assert all(parameter.grad is None for parameter in one.parameters())
            assert not any(module._forward_hooks or module._forward_pre_hooks for module in one.modules())

    def test_same_result_again_and_under_no_grad(self) -> None:
        model, original, data = pair()
        other = copy.deepcopy(model)
        refine(model, original, data, data, options=FEW)
        with torch.no_grad():
            refine(other, original, data, data, options=FEW)
        assert not changed(other, state(model))

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_any_implementation(self, implementation: str) -> None:
        model, original, data = pair()
        for one in (model, original):
            one.set_attn_implementation(implementation)
        original.config.output_attentions = implementation == "eager"
        assert refine(model, original, data, data, options=FEW).report.improved

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision(self, dtype: torch.dtype) -> None:
        original = tiny_model(BERT).to(dtype)
        model = converted(original)
        refinement = refine(model, original, batches(original), batches(original), options=FEW)
        assert all(layer.kept for layer in refinement.report.layers.values())
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}

    def test_padding_does_not_count(self) -> None:
        model, original, data = pair()
        other = copy.deepcopy(model)
        padded = []
        for batch in data:
            ids, mask = batch["input_ids"], batch["attention_mask"]
            padded.append(
                {
                    "input_ids": torch.nn.functional.pad(ids, (0, 6), value=7),
                    "attention_mask": torch.nn.functional.pad(mask, (0, 6)),
                }
            )
        first = refine(model, original, data, data, options=FEW).report.layers.values()
        second = refine(other, original, padded, padded, options=FEW).report.layers.values()
        for one, two in zip(first, second, strict=True):
            assert one.before == pytest.approx(two.before, rel=1e-3)
            assert one.after == pytest.approx(two.after, rel=1e-2)

    def test_a_large_batch_is_cut(self) -> None:
        model, original, data = pair()
        large = {name: torch.cat([batch[name] for batch in data]).repeat(8, 1) for name in data[0]}
        rows: list[int] = []
        original.register_forward_pre_hook(
            lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
        )
        assert refine(model, original, [large], data, options=FEW).report.improved
        assert max(rows) < len(large["input_ids"])

    def test_progress(self) -> None:
        model, original, data = pair()
        seen: list[tuple[str, int, int]] = []
        refine(model, original, data, data, options=RefineOptions(steps=3), progress=lambda *done: seen.append(done))
        assert seen == [("refining", step, 3) for step in (0, 1, 2, 3)]


class TestConversions:
    def test_are_refined_where_there_are_rows(self) -> None:
        original = tiny_model(BERT)
        calibration = collab.calibrate(original, batches(original))
        plain, refined = (
            collab.convert(
                original, collab.ConversionConfig(rank=8, refine=steps, compare=False), calibration=calibration
            )
            for steps in ("none", 20)
        )
        for before, after in zip(plain.report.layers, refined.report.layers, strict=True):
            assert before.output_error_before is before.output_error_after is None
            assert after.output_error_after < after.output_error_before
            assert after.score_error != before.score_error
        assert refined.report.settings["refine"] == 20
        errors = collab.score_errors(original, refined.model, calibration.moments)
        assert [layer.score_error for layer in refined.report.layers] == pytest.approx(list(errors.values()), rel=1e-4)
        errors = collab.score_errors(original, refined.model, calibration.held_out_moments)
        assert [layer.held_out_error for layer in refined.report.layers] == pytest.approx(
            list(errors.values()), rel=1e-4
        )

    def test_in_place(self) -> None:
        original = tiny_model(BERT)
        calibration = collab.calibrate(original, batches(original))
        config = collab.ConversionConfig(rank=8, refine=5, compare=False)
        model = collab.convert(original, config, calibration=calibration).model
        other = collab.convert(original, config, calibration=calibration, inplace=True).model
        assert other is original
        assert not changed(other, state(model))
        with torch.no_grad():
            assert largest_difference(other(**batches(other)[0]), model(**batches(other)[0])) == 0

    def test_without_rows_auto_does_nothing(self) -> None:
        original = tiny_model(BERT)
        rows = collab.calibrate(original, lambda model: [model(**batch) for batch in batches(original)] and None)
        for calibration in (None, rows):
            report = collab.convert(
                original, collab.ConversionConfig(rank=8, compare=False), calibration=calibration
            ).report
            assert all(layer.output_error_after is None for layer in report.layers)
            with pytest.raises(collab.errors.ConfigurationError, match="needs rows"):
                collab.convert(
                    original, collab.ConversionConfig(rank=8, refine=5, compare=False), calibration=calibration
                )
            collab.convert(original, collab.ConversionConfig(rank=32, refine=5, compare=False), calibration=calibration)


class TestBadInput:
    @pytest.mark.parametrize(
        "values",
        [{"steps": -1}, {"steps": 1.5}, {"rows": 0}, {"tokens": True}, {"learning_rate": 0}, {"learning_rate": 1.0}],
    )
    def test_options(self, values: dict) -> None:
        with pytest.raises(collab.errors.ConfigurationError):
            RefineOptions(**values)

    @pytest.mark.parametrize("steps", ["many", -1, 1.5, True, None])
    def test_config(self, steps: Any) -> None:
        with pytest.raises(collab.errors.ConfigurationError, match="refine"):
            collab.ConversionConfig(rank=8, refine=steps, compare=False)

    def test_no_steps_change_nothing(self) -> None:
        model, original, data = pair()
        before = state(model)
        assert not refine(model, original, data, data, options=RefineOptions(steps=0)).report.improved
        assert not changed(model, before)

    def test_data(self) -> None:
        model, original, data = pair()
        for train, judge in (([], None), (data[:1], None), (data, []), ([], data)):
            with pytest.raises(collab.errors.DataError):
                refine(model, original, train, judge, options=FEW)

    def test_models(self) -> None:
        model, original, data = pair()
        with pytest.raises(collab.errors.NotConvertedError):
            refine(original, original, data)
        with pytest.raises(collab.errors.ConfigurationError, match="cannot be compared"):
            refine(model, tiny_model(BERT, num_hidden_layers=3), data)
        with torch.no_grad():
            model.encoder.layer[0].attention.self.value.weight.add_(1)
        with pytest.raises(collab.errors.ConfigurationError, match="value projections differ"):
            refine(model, original, data)
