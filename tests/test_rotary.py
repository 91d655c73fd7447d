"""Layers with rotary positions: their algebra, what moments mean, and every command on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run
from reload import check_reloads, outputs_without_collab
from tiny import (
    BY_TYPE,
    LETTERS,
    ROWS,
    Row,
    batches,
    by_layers,
    converted,
    every_form,
    full_rank,
    largest_difference,
    of_seen,
    outputs,
    save_with_tokenizer,
    tiny_model,
)
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    JinaEmbeddingsV3ForSequenceClassification,
)

import collab
from collab.decomposition import FORMS, HeadTensor, RotaryFactors, SolverOptions, decompose_rotary, rotary_form_named
from collab.decomposition.rotary_factors import by_frequency
from collab.decomposition.tucker import most_core_entries
from collab.errors import BudgetError, ConfigurationError, UnsupportedArchitectureError, WeightsError
from collab.models.inputs import probe_inputs
from collab.models.layers import attention_layers
from collab.reparametrization.layer import factors_of
from collab.reparametrization.model import LayerProblems

JINA, EURO, MODERN = BY_TYPE["jina_embeddings_v3"], BY_TYPE["eurobert"], BY_TYPE["modernbert"]
ROTARY = [row for row in ROWS if row.is_rotary]
DISTINCT = [row for row in by_layers(ROWS) if row.is_rotary]
HEADS, WIDTH, HEAD_DIM = 5, 24, 6


@pytest.fixture
def tensor() -> HeadTensor:
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(WIDTH, HEADS * HEAD_DIM, generator=generator, dtype=torch.float64)
    query, key = (shared + torch.randn(shared.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return HeadTensor(query, key, HEADS)


def turned(columns: Tensor, offset: float) -> Tensor:
    """Projections (T, H·d), by head, as rotary positions turn them at one position: (T, H, d)."""
    angles = offset * torch.tensor([1.0, 0.3, 0.05], dtype=torch.float64)
    first, second = columns.unflatten(-1, (HEADS, HEAD_DIM)).chunk(2, dim=-1)
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], dim=-1
    )


def test_scores_are_sums_over_frequencies(tensor: HeadTensor) -> None:
    """Re(x T_f[:, h, :] yᵀ e^{iθ_fΔ}) over the frequencies is what turned queries and keys score."""
    x, y = torch.randn(2, 4, WIDTH, dtype=torch.float64)
    expected = (turned(x @ tensor.query, 7.0) * turned(y @ tensor.key, 2.0)).sum(-1)  # (4, H)
    phases = torch.polar(torch.ones(3, dtype=torch.float64), 5.0 * torch.tensor([1.0, 0.3, 0.05], dtype=torch.float64))
    query, key = by_frequency(tensor)  # (F, D, H)
    products = (x.to(query.dtype) @ query) * (y.to(key.dtype) @ key).conj()  # (F, 4, H)
    torch.testing.assert_close((products * phases[:, None, None]).real.sum(0), expected)


@every_form
def test_exact_at_full_rank(tensor: HeadTensor, form: str) -> None:
    solution = decompose_rotary(tensor, form, tensor.full_rank, SolverOptions(), False)
    assert solution.error < 1e-12
    assert solution.factors.rank == tensor.full_rank


@every_form
def test_errors_fall_with_the_rank(tensor: HeadTensor, form: str) -> None:
    errors = [decompose_rotary(tensor, form, rank, SolverOptions(), False).error for rank in (2, 8, 14, 20, 26)]
    assert errors == sorted(errors, reverse=True)
    assert 0 < errors[-1] < errors[0] < 1


@every_form
def test_error_is_that_of_the_matrices(tensor: HeadTensor, form: str) -> None:
    solution = decompose_rotary(tensor, form, 12, SolverOptions(), False)
    assert isinstance(solution.factors, RotaryFactors)
    query, key = by_frequency(tensor)
    squared = norm = 0.0
    for frequency in range(3):
        left, cores, right = solution.factors.block(frequency)
        for h in range(HEADS):
            exact = torch.outer(query[frequency, :, h], key[frequency, :, h].conj())
            squared += float((exact - left @ cores[h] @ right.mH).abs().square().sum())
            norm += float(exact.abs().square().sum())
    assert solution.error == pytest.approx((squared / norm) ** 0.5)
    assert solution.factors.canonical().relative_error(tensor) == pytest.approx(solution.error)


def test_even_heads_are_of_narrower_heads_alone() -> None:
    """Shared dimensions belong to no head, so all that a budget allows are there."""
    config = collab.ConversionConfig(params=0.6, refine="none", solver=SolverOptions(even_heads=True))
    report = collab.convert(tiny_model(BY_TYPE["esm"]), config).report
    alone = collab.convert(tiny_model(BY_TYPE["esm"]), replace(config, solver=SolverOptions())).report
    assert [layer.rank for layer in report.layers] == [layer.rank for layer in alone.layers]
    assert [layer.query_key for layer in report.layers] == [layer.query_key for layer in alone.layers]


def test_even_heads_are_never_above_the_rank(tensor: HeadTensor) -> None:
    """Of fewer pairs than heads, the best are kept."""
    factors = decompose_rotary(tensor, "concat", 2, SolverOptions(even_heads=True), biased=False).factors
    assert factors.rank == 2


def test_sharing_gains_over_keeping_pairs(tensor: HeadTensor) -> None:
    errors = {form: decompose_rotary(tensor, form, 12, SolverOptions(), False).error for form in ("concat", "cp")}
    assert errors["cp"] < errors["concat"]


def test_tucker_finds_heads_that_combine_two() -> None:
    basis = torch.randn(2, 3, WIDTH, 2, dtype=torch.complex128)
    mixing = torch.randn(2, 3, 2, HEADS, dtype=torch.complex128)
    sides = [(axes @ heads).permute(1, 2, 0) for axes, heads in zip(basis, mixing, strict=True)]  # (D, H, F)
    query, key = (torch.cat([side.real, side.imag], dim=-1).flatten(1) for side in sides)
    assert decompose_rotary(HeadTensor(query, key, HEADS), "tucker", 12, SolverOptions(), False).error < 1e-6


def test_closed_form_of_the_error(tensor: HeadTensor) -> None:
    curve = rotary_form_named("concat").decay(tensor)
    assert len(curve) == tensor.full_rank + 1
    for rank in (2, 10, 24):
        assert decompose_rotary(tensor, "concat", rank, SolverOptions(), False).error ** 2 == pytest.approx(
            float(curve[rank])
        )
    lower = rotary_form_named("tucker").decay(tensor)
    assert all(
        decompose_rotary(tensor, "tucker", rank, SolverOptions(), False).error ** 2 > float(lower[rank]) - 1e-9
        for rank in (2, 10, 24)
    )


@pytest.mark.parametrize("rank", [2, 8, 17, 29])
def test_ranks(tensor: HeadTensor, rank: int) -> None:
    """R counts real dimensions, is even, and bounds the cores."""
    for form in ("concat", "cp", "tucker"):
        factors = decompose_rotary(tensor, form, rank, SolverOptions(), False).factors
        assert factors.rank == rank - rank % 2
        assert max(factors.frequencies.count(frequency) for frequency in range(3)) <= HEADS
    assert factors.mixing.shape[1] <= 2 * most_core_entries(rank // 2, 3, HEADS)


@every_form
def test_layers_compute_their_factors(form: str) -> None:
    native = tiny_model(JINA)
    model = converted(native, 12, form)
    problem = next(iter(LayerProblems(native, None, torch.device("cpu")).values()))
    layer = next(layer.module for layer in attention_layers(model))
    factors = factors_of(layer).to(torch.float64)
    assert problem.error(factors) == pytest.approx(problem.solve(form, 12, "exact", SolverOptions()).error, abs=1e-6)
    # Scores of tokens at one position, biases included.
    states = torch.randn(1, 4, 32)
    positions = torch.ones(1, 4, 8), torch.zeros(1, 4, 8)
    projected, shared = layer.project(states, states, positions)
    scores = layer._mixed(projected) @ layer.keys_by_head(shared).mT
    widened = torch.nn.functional.pad(states, (0, 1), value=1.0).double()
    expected = torch.stack([widened[0] @ factors.head(h) @ widened[0].T for h in range(4)])
    torch.testing.assert_close(scores[0].double(), expected, rtol=1e-4, atol=1e-4)


def test_calibration_lowers_the_error_of_scores() -> None:
    native = tiny_model(JINA)
    calibration = collab.calibrate(native, batches(native, 16))
    settings = collab.ConversionConfig(rank=12, compare=False, refine="none")
    plain = collab.convert(native, settings)
    fitted = collab.convert(native, settings, calibration=calibration)
    errors = [collab.score_errors(native, c.model, calibration.moments) for c in (plain, fitted)]
    assert sum(errors[1].values()) < sum(errors[0].values())
    for layer in fitted.report.layers:
        assert layer.score_error == pytest.approx(errors[1][layer.name], rel=1e-3)


@pytest.mark.parametrize("row", [JINA, EURO, MODERN], ids=lambda row: row.model_type)
def test_refinement_lowers_the_error_of_outputs(row) -> None:
    native = tiny_model(row)
    model = converted(native, 12, "cp")
    refinement = collab.refine(model, native, batches(native, 16), options=collab.RefineOptions(steps=10, rows=8))
    assert refinement.report.improved
    assert all(layer.after < layer.before for layer in refinement.report.layers.values() if layer.kept)


@pytest.mark.parametrize("form", ["cp", "tucker", "concat", "auto"])
def test_budgets_hold(form: str) -> None:
    for row in (JINA, EURO):
        native = tiny_model(row)
        for params in (0.75, 0.4):
            report = collab.convert(
                native, collab.ConversionConfig(params=params, form=form, refine="none", compare=False)
            ).report
            assert report.query_key.ratio <= params
    report = collab.convert(
        tiny_model(JINA), collab.ConversionConfig(max_error=0.5, form="cp", refine="none", compare=False)
    ).report
    assert all(layer.error <= 0.5 for layer in report.layers)


def test_plan() -> None:
    native = tiny_model(JINA)
    plan = collab.plan(native, fractions=(0.5,))
    assert {option.form for option in plan.options} == {"concat", "cp", "tucker"}
    assert all(option.query_key <= 0.5 for option in plan.options)


def test_reloads_in_every_way(tmp_path: Path) -> None:
    exports = {}
    for row in (JINA, EURO, MODERN):
        native = tiny_model(row)
        save_with_tokenizer(native, tmp_path / row.model_type)
        for form in FORMS:
            output = tmp_path / f"{row.model_type}-{form}"
            collab.checkpoints.convert(
                str(tmp_path / row.model_type),
                output,
                collab.ConversionConfig(rank=12, form=form, compare=False, refine="none"),
                calibration=collab.CalibrationRequest("none"),
            )
            exports[output] = probe_inputs(native)
    check_reloads(exports, tmp_path)


def test_local_layers_see_only_their_window() -> None:
    native = tiny_model(MODERN)
    model = converted(native, 32)
    inputs = {"input_ids": torch.randint(2, 60, (2, 30)), "attention_mask": torch.ones(2, 30, dtype=torch.long)}
    inputs["attention_mask"][1, 20:] = 0
    with torch.no_grad():
        assert largest_difference(of_seen(native(**inputs), inputs), of_seen(model(**inputs), inputs)) < 1e-5


class TestExpand:
    """A native head has one complex dimension for every frequency."""

    @pytest.mark.parametrize("row", ROTARY, ids=lambda row: row.model_type)
    @pytest.mark.parametrize("form", ["cp", "tucker"])
    def test_exact_where_heads_have_one_dimension_of_a_frequency(self, row: Row, form: str) -> None:
        native = tiny_model(row)
        for rank in (full_rank(native), 2):
            model = converted(native, rank, form)
            expansion = collab.expand(model)
            assert expansion.report.error < 1e-7
            assert all(layer.head_rank == layer.head_dim == 1 for layer in expansion.report.layers)
            assert largest_difference(outputs(model), outputs(expansion.model)) < 1e-5

    @pytest.mark.parametrize("row", [JINA, EURO, MODERN], ids=lambda row: row.model_type)
    @pytest.mark.parametrize("form", ["cp", "tucker"])
    def test_refused_then_allowed_and_the_error_is_the_stated_one(self, row: Row, form: str) -> None:
        native = tiny_model(row)
        model = converted(native, 16, form)
        if form == "tucker":  # conversion gives cores of rank one; training does not keep it
            assert collab.expand(model).report.error < 1e-7
            with torch.no_grad():
                for layer in attention_layers(model):
                    layer.module.mixing += 0.1 * torch.randn_like(layer.module.mixing)
        with pytest.raises(BudgetError, match=r"of one frequency, and a native head has 1.*concat form, which"):
            collab.expand(model)
        expansion = collab.expand(model, allow_error=1)
        problems = LayerProblems(expansion.model, None, torch.device("cpu")).values()
        for layer, problem, stated in zip(attention_layers(model), problems, expansion.report.layers, strict=True):
            error = problem.error(factors_of(layer.module))  # relative to what is left
            assert stated.error == pytest.approx(error / (1 + error**2) ** 0.5, rel=1e-4)
            assert stated.head_rank > 1

    @pytest.mark.parametrize("form", ["concat", "cp"])
    def test_a_trained_bias_that_the_native_class_lacks(self, form: str) -> None:
        """It is said first, because an error that is allowed does not help."""
        model = converted(tiny_model(BY_TYPE["dinov3_vit"]), 12, form)
        with torch.no_grad():
            attention_layers(model)[0].module.key.bias.fill_(1)
        with pytest.raises(WeightsError, match="lacks biases of queries or keys"):
            collab.expand(model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier, its conversions, and labelled text."""
    folder = tmp_path_factory.mktemp("rotary")
    native = tiny_model(JINA, JinaEmbeddingsV3ForSequenceClassification, num_labels=2)
    save_with_tokenizer(native, folder / "model")
    rows = [f"{' '.join(LETTERS[number % 20 : number % 20 + 3 + number % 4])}\t{number % 2}" for number in range(40)]
    (folder / "rows.tsv").write_text("\n".join(["sentence\tlabel", *rows]))
    for form in FORMS:
        collab.checkpoints.convert(
            str(folder / "model"),
            folder / form,
            collab.ConversionConfig(rank=12, form=form, compare=False),
            calibration=collab.CalibrationRequest("none"),
        )
    return folder


class TestCommands:
    """Every command that reads a model, on an original and on conversions of it."""

    @staticmethod
    def succeed(*arguments: object) -> dict[str, Any]:
        done = run(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    @pytest.mark.parametrize("name", ["model", *FORMS])
    def test_heads(self, folder: Path, name: str) -> None:
        printed = self.succeed("heads", folder / name, "--data", folder / "rows.tsv", "--ablation-samples", 8)
        assert {len(row) for scores in printed["scores"].values() for row in scores.values()} == {4}
        assert "like_weights" not in printed["scores"]
        assert all(value >= 0 for row in printed["scores"]["gradient"].values() for value in row)

    def test_evaluate(self, folder: Path) -> None:
        printed = self.succeed(
            *("evaluate", folder / "cp", "--data", folder / "rows.tsv", "--against", folder / "model", "--draws", 50)
        )
        assert printed["against"]["parameters"]["model"] < printed["against"]["parameters"]["against"]
        assert 0 < printed["against"]["hidden_cosine"][-1] < 1

    def test_bench(self, folder: Path) -> None:
        arguments = ("--against", folder / "model", "--rounds", 1, "--batch-size", 2, "--length", 8, "--no-memory")
        printed = self.succeed("bench", folder / "tucker", *arguments)
        assert printed["settings"][0]["ratio"]["median"] > 0

    @pytest.mark.parametrize("name", ["model", *FORMS])
    def test_prune_and_expand(self, folder: Path, name: str, tmp_path: Path) -> None:
        assert run("prune", folder / name, tmp_path / "pruned", "--keep", "0:1,3;1:").exit_code == 0
        load = AutoModelForSequenceClassification.from_pretrained
        pruned = load(tmp_path / "pruned")
        assert [layer.heads for layer in attention_layers(pruned)] == [(1, 3), ()]
        done = run("expand", tmp_path / "pruned", tmp_path / "native")
        if name == "cp":
            assert "dimensions of one frequency" in " ".join(done.stderr.split())
            return
        assert done.exit_code == 0, done.output
        native = load(tmp_path / "native")
        assert type(native) is JinaEmbeddingsV3ForSequenceClassification
        assert largest_difference(outputs(native), outputs(pruned)) < 1e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", DISTINCT, ids=lambda row: row.model_type)
def test_compiles_without_graph_breaks(row: Row) -> None:
    model = converted(tiny_model(row), 12, FORMS[DISTINCT.index(row) % 3])
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    inputs = probe_inputs(model)
    with torch.no_grad():
        assert largest_difference(of_seen(compiled(**inputs), inputs), of_seen(model(**inputs), inputs)) < 1e-5


class TestRefusals:
    def test_what_rotary_layers_cannot_do(self) -> None:
        native = tiny_model(JINA)
        with pytest.raises(ConfigurationError, match="no content bias that could be folded"):
            converted(native, 12, content="folded")
        with pytest.raises(ConfigurationError, match="tensorly"):
            converted(native, 12, solver="tensorly")

    def test_heads_that_share_values_are_not_removed(self) -> None:
        native = tiny_model(EURO)
        for each in (native, converted(native, 12)):
            with pytest.raises(UnsupportedArchitectureError, match="share keys and values"):
                collab.prune(each, {attention_layers(each)[0].name: [0]})


@pytest.fixture
def rotary_folder(shared_data: Path) -> Path:
    return shared_data / "checkpoints" / "minilm-rotary"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["cp", *(pytest.param(form, marks=pytest.mark.exhaustive) for form in FORMS[::2])])
def test_real_checkpoint(form: str, rotary_folder: Path, tmp_path: Path) -> None:
    """Exact at full rank, loaded without collab; and closer to the original than .95 at half the parameters."""
    original = AutoModel.from_pretrained(rotary_folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(rotary_folder)
    text = ["A man is playing a guitar.", "Two dogs run across a snowy field while their owner watches.", "No."] * 8
    inputs = {
        name: value
        for name, value in tokenizer(text, padding=True, return_tensors="pt").items()
        if name != "token_type_ids"
    }
    with torch.no_grad():
        expected = of_seen(original(**inputs), inputs)
    collab.checkpoints.convert(
        str(rotary_folder),
        tmp_path / "out",
        collab.ConversionConfig(rank=384, form=form, compare=False),
        calibration=collab.CalibrationRequest("none"),
        dtype=torch.float32,
    )
    (remote,) = outputs_without_collab(
        [{"folder": tmp_path / "out", "auto_class": "AutoModel", "inputs": inputs}], tmp_path
    )
    assert largest_difference(expected, of_seen(remote, inputs)) < 1e-4
    with (shared := rotary_folder.parents[1] / "data" / "stsb" / "train.csv").open(encoding="utf-8") as file:
        rows = [line.split(",")[0] for line, _ in zip(file, range(128), strict=False)]
    assert shared.exists()
    calibration = collab.calibrate(collab.Checkpoint(original, tokenizer), rows)
    config = collab.ConversionConfig(params=0.5, form=form, compare=False, refine="none")
    half = collab.convert(original, config, calibration=calibration).model
    with torch.no_grad():
        actual = of_seen(half(**inputs), inputs)["last_hidden_state"]
    cosine = torch.cosine_similarity(actual, expected["last_hidden_state"], dim=-1).mean()
    assert 0.95 < float(cosine) < 1
