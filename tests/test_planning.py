"""Costs, predictions, budgets and plans."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from tiny import BERT, BY_TYPE, Row, batches, every_form, few_kinds, in_pairs, often, tiny_model

import collab
from collab.decomposition import FORMS
from collab.models.cache import cache_bytes
from collab.planning.cost import LayerShape
from collab.planning.predict import predict
from collab.reparametrization.model import LayerProblems

FEW = collab.CalibrationOptions(samples=64)


def problems(model: transformers.PreTrainedModel, calibration: collab.Calibration | None) -> LayerProblems:
    moments = None if calibration is None else calibration.moments
    return LayerProblems(model, moments, torch.device("cpu"))


@in_pairs("form", FORMS, "content", ["exact", "folded"])
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_are_those_of_the_conversion(form: str, content: str, bias: bool) -> None:
    model = tiny_model(BERT)
    if not bias:
        model = tiny_model(BY_TYPE["vit"], qkv_bias=False)
    for rank in (1, 7, 32):
        report = collab.convert(model, collab.ConversionConfig(rank=rank, form=form, content=content)).report
        shape = LayerShape.of(next(iter(problems(model, None).values())))
        assert shape.parameters_before == report.layers[0].query_key.before
        assert shape.parameters(form, rank, content) == report.layers[0].query_key.after


@every_form
def test_rank_within_is_the_largest(form: str) -> None:
    shape = LayerShape.of(next(iter(problems(tiny_model(BERT), None).values())))
    for parameters in (10, 300, 700, 1500, 10**6):
        rank = shape.rank_within(form, parameters, "exact")
        assert rank == 0 or shape.parameters(form, rank, "exact") <= parameters
        assert rank == shape.full_rank or shape.parameters(form, rank + 1, "exact") > parameters


@every_form
def test_predictions_hold(form: str) -> None:
    model = tiny_model(BERT)
    calibration = collab.calibrate(model, options=FEW)
    for rank in (6, 12, 20):
        config = collab.ConversionConfig(rank=rank, form=form, refine="none")
        report = collab.convert(model, config, calibration=calibration).report
        for layer, problem in zip(report.layers, problems(model, calibration).values(), strict=True):
            predicted = predict(problem, form, rank, "exact", collab.SolverOptions())
            # Random heads share nothing, which is where the sweeps gain most after the first few.
            assert layer.score_error == pytest.approx(predicted, rel=0.2 if form == "cp" else 0.05)


class TestBudgets:
    @every_form
    @pytest.mark.parametrize("params", [0.3, 0.6, 1.0])
    def test_params(self, form: str, params: float) -> None:
        for allocation in ("balanced", "uniform"):
            config = collab.ConversionConfig(params=params, form=form, allocation=allocation, refine="none")
            report = collab.convert(tiny_model(BERT), config).report
            assert report.query_key.ratio <= params
            assert report.query_key.ratio > params - (0.2 if form == "tucker" else 0.05)
            assert report.choice == {"budget": {"params": params}, "allocation": allocation}

    @pytest.mark.parametrize("model_type", ["whisper", "beit", "dinov3_vit"])
    def test_params_where_only_queries_have_biases(self, model_type: str) -> None:
        for allocation in ("balanced", "uniform"):
            config = collab.ConversionConfig(params=0.99, form="concat", allocation=allocation, refine="none")
            report = collab.convert(tiny_model(BY_TYPE[model_type]), config).report
            assert 0.9 < report.query_key.ratio <= 0.99

    def test_auto_allocation_is_uniform_on_random_words(self) -> None:
        model = tiny_model(BERT)
        config = collab.ConversionConfig(params=0.4, refine="none")
        synthetic = collab.calibrate(model, options=FEW)
        real = collab.Calibration(synthetic.moments, synthetic.held_out_moments)
        for calibration, expected in ((None, "balanced"), (synthetic, "uniform"), (real, "balanced")):
            report = collab.convert(model, config, calibration=calibration).report
            assert report.choice["allocation"] == expected

    @every_form
    def test_balanced_ranks_go_where_they_are_needed(self, form: str) -> None:
        """A layer whose heads are all alike needs few dimensions."""
        model = tiny_model(BERT)
        with torch.no_grad():
            for name in ("query", "key"):
                weight = getattr(model.encoder.layer[1].attention.self, name).weight
                weight *= 0.5 ** torch.arange(32).remainder(8).unsqueeze(1)
        report = collab.convert(model, collab.ConversionConfig(params=0.4, form=form)).report
        assert report.layers[0].rank > report.layers[1].rank
        uniform = collab.ConversionConfig(params=0.4, form=form, allocation="uniform")
        errors = [layer.error for layer in collab.convert(model, uniform).report.layers]
        assert sum(layer.error**2 for layer in report.layers) < sum(error**2 for error in errors)

    @pytest.mark.parametrize("form", often(FORMS, {"tucker"}))
    def test_max_error(self, form: str) -> None:
        model = tiny_model(BERT)
        calibration = collab.calibrate(model, options=FEW)
        for limit in (0.1, 0.5):
            config = collab.ConversionConfig(max_error=limit, form=form, refine=4)
            report = collab.convert(model, config, calibration=calibration).report
            assert all(layer.score_error <= limit for layer in report.layers)
            assert report.choice == {"budget": {"max_error": limit}}
            ranks = [max(1, layer.rank - 1) for layer in report.layers]
            below = collab.ConversionConfig(rank=ranks, form=form, refine="none")
            for layer in collab.convert(model, below, calibration=calibration).report.layers:
                assert layer.score_error > limit, "the smallest rank"

    def test_max_error_of_the_reference_solver(self) -> None:
        """Its random start ends elsewhere than what is predicted."""
        config = collab.ConversionConfig(max_error=0.4, solver="tensorly")
        report = collab.convert(tiny_model(BERT, num_hidden_layers=1), config).report
        assert all(layer.error <= 0.4 for layer in report.layers)

    def test_auto_by_size(self) -> None:
        model = tiny_model(BERT)
        calibration = collab.calibrate(model, options=FEW)
        report = collab.convert(
            model, collab.ConversionConfig(params=0.5, form="auto", refine="none"), calibration=calibration
        ).report
        candidates = report.choice["candidates"]
        assert set(candidates) == set(FORMS)
        assert candidates[report.choice["chosen"]]["error"] == min(
            candidate["error"] for candidate in candidates.values()
        )
        assert {layer.form for layer in report.layers} == {report.choice["chosen"]}
        assert all(candidate["parameters"] <= 0.5 * report.query_key.before for candidate in candidates.values())
        report = collab.convert(
            model, collab.ConversionConfig(max_error=0.3, form="auto", refine="none"), calibration=calibration
        ).report
        candidates = report.choice["candidates"]
        assert report.query_key.after == min(candidate["parameters"] for candidate in candidates.values())

    def test_auto_by_speed(self) -> None:
        config = collab.ConversionConfig(params=0.5, form="auto", optimize="speed", refine="none")
        report = collab.convert(tiny_model(BERT), config).report
        candidates = report.choice["candidates"]
        least = min(candidate["cost"] for candidate in candidates.values())
        near = [form for form in candidates if candidates[form]["cost"] < 1.1 * least]
        assert report.choice["chosen"] == min(near, key=lambda form: candidates[form]["error"])
        chosen = candidates[report.choice["chosen"]]
        assert all(ratio > 1 for ratio in chosen["faster"].values()), "never slower than the original"
        assert list(chosen["faster"]) == [16, 32, 40], "what the model takes"
        head_dim = 32 // 4
        assert all(layer.rank <= head_dim for layer in report.layers if layer.form != "concat")

    def test_speed_that_no_form_reaches(self, caplog: pytest.LogCaptureFixture) -> None:
        config = collab.ConversionConfig(max_error=1e-6, form="auto", optimize="speed", refine="none")
        report = collab.convert(tiny_model(BERT), config).report
        assert min(report.choice["candidates"][report.choice["chosen"]]["faster"].values()) <= 1
        assert "as fast as the original" in caplog.text

    def test_repeats(self) -> None:
        model = tiny_model(BERT)
        config = collab.ConversionConfig(max_error=0.4, form="auto", refine="none")
        first, second = (collab.convert(model, config).report for _ in range(2))
        assert [layer.rank for layer in first.layers] == [layer.rank for layer in second.layers]

    def test_a_budget_that_cannot_be_met_names_the_nearest_that_can(self) -> None:
        model = tiny_model(BERT)
        with pytest.raises(collab.errors.BudgetError, match=r"Keep at least (0\.\d+) \(params, --params\)") as caught:
            collab.convert(model, collab.ConversionConfig(params=0.001))
        nearest = float(str(caught.value).split("at least ")[1].split()[0])
        assert collab.convert(model, collab.ConversionConfig(params=nearest)).report.query_key.ratio <= nearest

    @every_form
    def test_the_nearest_budget_of_rotary_layers_has_a_whole_complex_dimension(self, form: str) -> None:
        model = tiny_model(BY_TYPE["jina_embeddings_v3"])
        for allocation in ("balanced", "uniform"):
            with pytest.raises(collab.errors.BudgetError, match="at rank 2 a layer keeps") as caught:
                collab.convert(model, collab.ConversionConfig(params=0.001, form=form, allocation=allocation))
            nearest = float(str(caught.value).split("at least ")[1].split()[0])
            config = collab.ConversionConfig(params=nearest, form=form, allocation=allocation)
            layers = collab.convert(model, config).report.layers
            assert all(layer.rank == 2 for layer in layers)

    @pytest.mark.parametrize(
        "values",
        [
            {},
            {"rank": 8, "params": 0.5},
            {"params": 0.5, "max_error": 0.1},
            {"rank": 8, "form": "auto"},
            {"params": 0},
            {"params": 1.5},
            {"max_error": -0.1},
            {"params": "half"},
            {"params": 0.5, "optimize": "beauty"},
            {"params": 0.5, "allocation": "fair"},
            {"rank": 8, "content": "none"},
        ],
    )
    def test_settings(self, values: dict) -> None:
        with pytest.raises(collab.errors.ConfigurationError):
            collab.ConversionConfig(**values)


class TestPlan:
    def test_nothing_fits(self) -> None:
        model = tiny_model(BERT)
        with pytest.raises(collab.errors.BudgetError, match=r"Keep at least (0\.\d+) \(params, --params\)") as caught:
            collab.plan(model, fractions=(0.005, 0.01))
        nearest = float(str(caught.value).split("at least ")[1].split()[0])
        assert collab.plan(model, fractions=(0.01, nearest)).options

    @pytest.mark.parametrize("fraction", [2.0, 0, -1, float("nan"), "0.5"])
    def test_budgets_that_are_not_fractions(self, fraction: object) -> None:
        model = tiny_model(BERT)
        calibration = collab.calibrate(model, batches(model))
        for config in (None, collab.ConversionConfig(max_error=0.1), collab.CompressionConfig(flops=0.5)):
            with pytest.raises(collab.errors.ConfigurationError, match="must be above 0 and at most 1, not"):
                collab.plan(model, calibration, config, fractions=(0.5, fraction))

    @few_kinds
    def test_every_family(self, row: Row) -> None:
        model = tiny_model(row)
        plan = collab.plan(model)
        assert plan.query_key_parameters == collab.inspect(model).parameters["query_key"]
        assert {option.form for option in plan.options} == set(FORMS)
        json.dumps(plan.to_dict())
        assert "form at rank" in plan.recommendation
        assert plan.refinement == "Nothing is refined: that needs rows to calibrate on."

    def test_settings_of_the_conversion_are_planned(self) -> None:
        """One form, at balanced ranks, by rank or within an error: as `convert` then chooses."""
        model = tiny_model(BERT)
        for settings in ({"params": 0.4}, {"rank": 0.5}, {"max_error": 0.5}):
            config = collab.ConversionConfig(form="cp", **settings)
            ((unit, value),) = settings.items()
            plan = collab.plan(model, None, config, fractions=(value,))
            (option,) = plan.options
            report = collab.convert(model, config).report
            assert [layer["queries-keys"] for layer in option.widths] == [layer.rank for layer in report.layers]
            assert plan.unit == {"max_error": "error"}.get(unit, unit)
            assert option.budget == value
            assert option.reached <= value

    def test_numbers(self) -> None:
        model = tiny_model(BERT)
        calibration = collab.calibrate(model, options=FEW)
        plan = collab.plan(model, calibration, fractions=(0.5, 0.25))
        assert len(plan.options) == 6
        assert plan.query_key_parameters == 2 * 2112
        assert plan.cache is None  # of an encoder
        assert "before refinement" in plan.refinement
        for option in plan.options:
            config = collab.ConversionConfig(rank=option.rank, form=option.form, refine="none")
            report = collab.convert(model, config, calibration=calibration).report
            assert option.query_key == pytest.approx(report.query_key.ratio)
            assert option.model == pytest.approx(report.model.ratio)
            assert option.layer_errors == pytest.approx([layer.score_error for layer in report.layers], rel=0.2)
            assert min(option.layer_errors) <= option.error <= max(option.layer_errors)
        assert any(option.frontier for option in plan.options)
        for option in plan.options:
            beaten = any(rival.query_key <= option.query_key and rival.error < option.error for rival in plan.options)
            assert option.frontier is not beaten
        for spectrum in plan.spectra:
            query = model.get_submodule(spectrum.name).query.weight.T.double()
            key = model.get_submodule(spectrum.name).key.weight.T.double()
            for matrix, shares in ((query, spectrum.query), (key, spectrum.key), (query @ key.T, spectrum.product)):
                energy = torch.linalg.svdvals(matrix).square()
                expected = (energy.cumsum(0) / energy.sum())[[number - 1 for number in spectrum.components]]
                assert shares == pytest.approx(expected.tolist(), abs=1e-9)


def test_the_cache_of_grouped_keys_is_that_of_the_conversion() -> None:
    model = transformers.AutoModelForCausalLM.from_config(BY_TYPE["qwen2"].config(num_key_value_heads=2))
    option = next(each for each in collab.plan(model, fractions=(0.5,)).options if each.form == "cp")
    converted = collab.convert(model, collab.ConversionConfig(rank=option.rank, refine="none", compare=False)).model
    assert option.cache == cache_bytes(converted)


def test_at_full_rank_there_is_no_content_without_biases() -> None:
    """T5 at R = K is exact with as many parameters as before, so all of them are a budget that K fits."""
    model = tiny_model(BY_TYPE["t5"])
    config = collab.ConversionConfig(params=1.0, form="concat", allocation="uniform", refine="none", compare=False)
    layers = collab.convert(model, config, calibration=collab.calibrate(model, batches(model))).report.layers
    assert all(layer.rank == layer.full_rank for layer in layers)
    assert max(layer.score_error for layer in layers) < 1e-5


def test_arithmetic_of_rotary_layers_of_which_other_parts_are_smaller() -> None:
    """Narrower values, or fewer neurons, leave that of queries and keys as it was."""
    for model_type, part in (("modernbert", "values"), ("qwen2", "feed-forward")):
        native = tiny_model(BY_TYPE[model_type])
        before = collab.inspect(native, lengths=(8,)).layers
        config = collab.CompressionConfig(params=0.9, only=(part,))
        smaller = collab.compress(native, config, collab.calibrate(native, batches(native))).model
        for layer, first in zip(collab.inspect(smaller, lengths=(8,)).layers, before, strict=True):
            assert layer.flops_original == first.flops_original, model_type
            assert layer.flops == first.flops, model_type


def test_score_errors_of_a_loaded_model(tmp_path) -> None:
    """Measured from the weights of the export, they are those of the report."""
    model = tiny_model(BERT)
    calibration = collab.calibrate(model, options=FEW)
    for form in FORMS:
        for content in ("exact", "folded"):
            conversion = collab.convert(
                model,
                collab.ConversionConfig(rank=9, form=form, content=content, refine="none"),
                calibration=calibration,
            )
            conversion.model.save_pretrained(tmp_path / form / content)
            loaded = transformers.AutoModel.from_pretrained(tmp_path / form / content)
            errors = collab.score_errors(model, loaded, calibration.moments)
            assert list(errors.values()) == pytest.approx(
                [layer.score_error for layer in conversion.report.layers], rel=1e-3
            )
            held = collab.score_errors(model, loaded, calibration.held_out_moments)
            assert list(held.values()) == pytest.approx(
                [layer.held_out_error for layer in conversion.report.layers], rel=1e-3
            )
