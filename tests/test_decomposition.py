"""The three forms: optimal where closed, never rising where iterated, and checked against tensorly and numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorly
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorly.cp_tensor import cp_to_tensor
from tensorly.metrics import RMSE
from tensorly.tucker_tensor import tucker_to_tensor

import collab
from collab.decomposition import (
    FORMS,
    HeadTensor,
    SolverOptions,
    decompose,
    decompose_concat,
    decompose_cp,
    decompose_tucker,
    form_named,
)
from collab.decomposition.options import DESCRIPTIONS
from collab.decomposition.reference import reference_cp, reference_tucker
from collab.errors import ConfigurationError, DeviceError, RankError
from collab.modeling import collab_config

NAMING_FORMS = ("decomposition", "modeling")


def shared_tensor(
    query_width: int = 24, key_width: int = 24, heads: int = 4, head_dim: int = 6, seed: int = 0
) -> HeadTensor:
    """Heads that share directions, as real ones do: a falling common spectrum and noise of their own."""
    generator = torch.Generator().manual_seed(seed)
    full = heads * head_dim

    def factor(width: int) -> torch.Tensor:
        spectrum = 0.8 ** torch.arange(width, dtype=torch.float64)
        common = torch.randn(width, full, generator=generator, dtype=torch.float64) * spectrum[:, None]
        return common + 0.05 * torch.randn(width, full, generator=generator, dtype=torch.float64)

    return HeadTensor(factor(query_width), factor(key_width), heads)


@given(
    heads=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    query_width=st.integers(2, 14),
    key_width=st.integers(2, 14),
    fraction=st.floats(0.05, 1.0),
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_any_shape_and_rank(
    heads: int, head_dim: int, query_width: int, key_width: int, fraction: float, form: str, seed: int
) -> None:
    tensor = shared_tensor(query_width, key_width, heads, head_dim, seed)
    rank = max(1, round(fraction * tensor.full_rank))
    result = decompose(tensor, form, rank, SolverOptions(max_sweeps=20))
    factors = result.factors
    assert factors.query.shape == (query_width, rank)
    assert factors.key.shape == (key_width, rank)
    assert factors.mixing.shape == ((heads, rank, rank) if form == "tucker" else (heads, rank))
    assert all(part.isfinite().all() for part in (factors.query, factors.key, factors.mixing))
    assert result.error <= result.concat_error * (1 + 1e-9) + 1e-9
    assert result.error == pytest.approx(factors.relative_error(tensor), abs=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("widths", [(24, 24), (10, 24), (40, 24), (24, 31)])
def test_full_rank_is_exact_without_iterating(form: str, widths: tuple[int, int]) -> None:
    tensor = shared_tensor(*widths)
    result = decompose(tensor, form, tensor.full_rank)
    assert result.error < 1e-14
    assert result.sweeps == 0
    assert result.converged


@pytest.mark.parametrize("form", FORMS)
def test_rank_above_full_is_refused(form: str) -> None:
    tensor = shared_tensor()
    for rank in (tensor.full_rank + 1, 0, -3):
        with pytest.raises(RankError, match=f"between 1 and {tensor.full_rank}"):
            decompose(tensor, form, rank)


@pytest.mark.parametrize("form", FORMS)
def test_zero_weights_stay_zero(form: str) -> None:
    tensor = HeadTensor(torch.zeros(6, 8), torch.randn(6, 8), 2)
    result = decompose(tensor, form, 3)
    assert result.error == 0
    assert all(part.isfinite().all() for part in (result.factors.query, result.factors.key, result.factors.mixing))


class TestForms:
    def test_every_name_has_a_form_a_line_of_help_and_a_layer(self) -> None:
        assert [form_named(name).form for name in FORMS] == list(FORMS) == sorted(DESCRIPTIONS)
        assert collab_config.FORMS == FORMS

    def test_code_elsewhere_asks_the_form_and_does_not_name_it(self) -> None:
        library = Path(collab.__file__).parent
        files = [file for file in library.rglob("*.py") if file.relative_to(library).parts[0] not in NAMING_FORMS]
        assert not [file for file in files if '"tucker"' in file.read_text(encoding="utf-8")]


class TestConcat:
    @pytest.mark.parametrize("rank", [1, 7, 12, 23])
    def test_keeps_the_largest_singular_values(self, rank: int) -> None:
        tensor = shared_tensor(key_width=17)
        spectra = np.concatenate([np.linalg.svd(tensor.head(h).numpy(), compute_uv=False)[:6] for h in range(4)])
        dropped = np.sort(spectra)[::-1][rank:]
        expected = np.sqrt((dropped**2).sum() / (spectra**2).sum())
        factors = decompose_concat(tensor, rank)
        assert factors.relative_error(tensor) == pytest.approx(expected, rel=1e-9)

    def test_every_dimension_serves_one_head(self) -> None:
        factors = decompose_concat(shared_tensor(), 9)
        assert factors.mixing.sum(dim=0).tolist() == [1] * 9
        assert set(factors.mixing.unique().tolist()) == {0.0, 1.0}
        assert sum(factors.head_ranks) == 9
        owners = factors.mixing.argmax(dim=0)
        assert (owners.diff() >= 0).all(), "a head's dimensions lie side by side"

    def test_norms_are_balanced(self) -> None:
        factors = decompose_concat(shared_tensor(), 9)
        torch.testing.assert_close(factors.query.norm(dim=0), factors.key.norm(dim=0))


class TestCP:
    @pytest.mark.parametrize("rank", [4, 12, 20, 23])
    def test_error_starts_at_concat_and_never_rises(self, rank: int) -> None:
        tensor = shared_tensor()
        start = decompose_concat(tensor, rank)
        fit = decompose_cp(tensor, start, SolverOptions())
        assert fit.errors[0] == pytest.approx(start.relative_error(tensor), rel=1e-6)
        assert all(later <= earlier for earlier, later in zip(fit.errors, fit.errors[1:], strict=False))
        assert fit.errors[-1] < fit.errors[0]
        assert fit.errors[-1] == pytest.approx(fit.factors.relative_error(tensor), rel=1e-6)

    def test_gauge(self) -> None:
        factors = decompose(shared_tensor(), "cp", 10).factors
        torch.testing.assert_close(factors.query.norm(dim=0), factors.key.norm(dim=0))
        torch.testing.assert_close(factors.mixing.norm(dim=0), torch.ones(10, dtype=torch.float64))
        assert (factors.mixing.gather(0, factors.mixing.abs().argmax(dim=0, keepdim=True)) > 0).all()
        assert (factors.query.norm(dim=0).diff() <= 1e-12).all()

    def test_ends_below_the_reference(self) -> None:
        tensor = shared_tensor()
        for rank in (6, 12, 18):
            rival = reference_cp(tensor, rank, SolverOptions(max_sweeps=100, tolerance=1e-6))
            ours = decompose(tensor, "cp", rank)
            assert ours.error <= rival.factors.relative_error(tensor) * 1.02

    @pytest.mark.parametrize("precision", ["float32", "float64"])
    @pytest.mark.parametrize("rank", [6, 12, 18])
    @pytest.mark.parametrize("noise", [0, 0.01])
    def test_heads_that_are_alike(self, precision: str, rank: int, noise: float) -> None:
        """Each of four equal heads owning a quarter of the dimensions is a saddle, where no sweep gains anything."""
        generator = torch.Generator().manual_seed(0)
        shared, own = (torch.randn(2, 24, 24, generator=generator, dtype=torch.float64) for _ in range(2))
        query, key = shared[:, :, :6].repeat(1, 1, 4) + noise * own
        result = decompose(HeadTensor(query, key, 4), "cp", rank, SolverOptions(precision=precision))
        assert result.concat_error > 0.2
        assert result.converged
        assert result.error < 2 * noise + 1e-3

    def test_where_nothing_is_to_gain_the_start_stays(self) -> None:
        """Heads that share nothing: concat is the best there is, and a plain sweep is stuck there too."""
        tensor = HeadTensor(torch.eye(12, dtype=torch.float64), torch.eye(12, dtype=torch.float64), 3)
        result = decompose(tensor, "cp", 6, SolverOptions(precision="float64"))
        assert result.error == pytest.approx(result.concat_error, rel=1e-9)
        assert result.converged

    def test_finds_a_collaborative_layer_again(self) -> None:
        """Heads that truly share four dimensions are found to: concat cannot, at that rank."""
        generator = torch.Generator().manual_seed(1)
        query, key = (torch.randn(16, 4, generator=generator, dtype=torch.float64) for _ in range(2))
        mixing = torch.rand(3, 4, generator=generator, dtype=torch.float64) + 0.5
        tensor = HeadTensor((query[:, None] * mixing).reshape(16, 12), key[:, None].expand(16, 3, 4).reshape(16, 12), 3)
        result = decompose(tensor, "cp", 4, SolverOptions(max_sweeps=2000, tolerance=1e-9))
        assert result.concat_error > 0.3
        assert result.error < 1e-3

    def test_ridge_bounds_degeneracy(self) -> None:
        tensor = shared_tensor(seed=3)
        start = decompose_concat(tensor, 8)
        norm_squared = tensor.norm_squared()
        bare, ridged = (
            decompose_cp(tensor, start, SolverOptions(ridge=ridge, max_sweeps=500, tolerance=0)).factors
            for ridge in (0.0, SolverOptions.ridge)
        )
        assert ridged.component_energy() / norm_squared < 3
        assert ridged.component_energy() < bare.component_energy()

    def test_says_when_it_ran_out_of_sweeps(self) -> None:
        tensor = shared_tensor()
        assert not decompose(tensor, "cp", 8, SolverOptions(max_sweeps=2)).converged
        assert decompose(tensor, "cp", 8, SolverOptions(max_sweeps=2000)).converged

    def test_is_deterministic(self) -> None:
        first, second = (decompose(shared_tensor(), "cp", 8).factors for _ in range(2))
        assert torch.equal(first.query, second.query)
        assert torch.equal(first.mixing, second.mixing)

    def test_single_precision(self) -> None:
        double, single = (
            decompose(shared_tensor(), "cp", 8, SolverOptions(precision=precision))
            for precision in ("float64", "float32")
        )
        assert single.factors.query.dtype == double.factors.query.dtype == torch.float64
        assert single.error == pytest.approx(double.error, rel=1e-2)
        assert single.error != double.error


class TestTucker:
    @pytest.mark.parametrize("rank", [2, 5, 9, 15, 23])
    def test_at_most_the_error_of_the_others(self, rank: int) -> None:
        tensor = shared_tensor()
        errors = {form: decompose(tensor, form, rank).error for form in FORMS}
        assert errors["tucker"] <= errors["cp"] <= errors["concat"]

    @pytest.mark.parametrize("rank", [3, 8, 14])
    def test_agrees_with_tensorly(self, rank: int) -> None:
        tensor = shared_tensor(key_width=20)
        options = SolverOptions(max_sweeps=300, tolerance=1e-9)
        rival = reference_tucker(tensor, rank, options)
        ours = decompose_tucker(tensor, rank, decompose_concat(tensor, rank), options)
        assert ours.factors.relative_error(tensor) == pytest.approx(rival.factors.relative_error(tensor), rel=1e-3)

    def test_projections_are_orthogonal_and_alike(self) -> None:
        """Equal norms, with cores of the size of cp's mixing, for an optimizer whose steps are the same for all."""
        factors = decompose(shared_tensor(), "tucker", 8).factors
        scale = factors.query[:, 0].square().sum()
        for basis in (factors.query, factors.key):
            torch.testing.assert_close(basis.T @ basis, scale * torch.eye(8, dtype=torch.float64))
        assert float(factors.mixing.square().sum()) == pytest.approx(factors.rank)

    def test_rank_above_the_width_of_an_input(self) -> None:
        tensor = shared_tensor(query_width=5, key_width=24)
        assert decompose(tensor, "tucker", 20).error < 0.05
        assert decompose(tensor, "tucker", 20, SolverOptions(method="tensorly")).error < 0.05


class TestTensorly:
    """The containers say the same as the factors; the reference solvers are reachable by option."""

    @pytest.mark.parametrize("form", FORMS)
    def test_containers(self, form: str) -> None:
        tensor = shared_tensor(key_width=18)
        result = decompose(tensor, form, 8)
        with tensorly.backend_context("pytorch", local_threadsafe=True):
            container = result.factors.to_tensorly()
            dense = tucker_to_tensor(container) if form == "tucker" else cp_to_tensor(container)
            rmse = float(RMSE(tensor.dense(), dense))
        expected = result.error * (tensor.norm_squared() / tensor.dense().numel()) ** 0.5
        assert rmse == pytest.approx(expected, rel=1e-9)

    def test_leaves_the_backend_alone(self) -> None:
        before = tensorly.get_backend()
        decompose(shared_tensor(), "cp", 4, SolverOptions(method="tensorly", max_sweeps=3))
        assert tensorly.get_backend() == before

    @pytest.mark.parametrize("form", ["cp", "tucker"])
    def test_by_option(self, form: str) -> None:
        tensor = shared_tensor()
        options = SolverOptions(method="tensorly", max_sweeps=60, tolerance=1e-8)
        result = decompose(tensor, form, 10, options, seed=4)
        again = decompose(tensor, form, 10, options, seed=4)
        assert torch.equal(result.factors.query, again.factors.query)
        assert result.error == pytest.approx(result.factors.relative_error(tensor))
        assert result.sweeps > 0
        assert result.error < 0.6

    def test_seed_moves_the_start(self) -> None:
        options = SolverOptions(method="tensorly", max_sweeps=3)
        first, second = (decompose(shared_tensor(), "cp", 6, options, seed=seed).error for seed in (0, 1))
        assert first != second


class TestOptions:
    @pytest.mark.parametrize(
        "values",
        [
            {"method": "magic"},
            {"precision": "float16"},
            {"max_sweeps": 0},
            {"tolerance": -1.0},
            {"tolerance": float("nan")},
            {"ridge": -1e-3},
        ],
    )
    def test_out_of_range(self, values: dict) -> None:
        with pytest.raises(ConfigurationError):
            SolverOptions(**values)

    def test_unknown_form(self) -> None:
        with pytest.raises(ConfigurationError, match="concat, cp, tucker"):
            decompose(shared_tensor(), "svd", 4)

    def test_devices(self) -> None:
        with pytest.raises(ConfigurationError, match="Unknown device"):
            decompose(shared_tensor(), "cp", 4, SolverOptions(device="gpu"))
        if not torch.cuda.is_available():
            with pytest.raises(DeviceError, match="No device 'cuda'"):
                decompose(shared_tensor(), "cp", 4, SolverOptions(device="cuda"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("query", "key"), [(1e-25, 1.0), (1e9, 1e9), (1e-12, 1e-12)])
def test_scale_does_not_matter(form: str, query: float, key: float) -> None:
    tensor = shared_tensor()
    expected = decompose(tensor, form, 5)
    scaled = decompose(HeadTensor(tensor.query * query, tensor.key * key, tensor.num_heads), form, 5)
    assert scaled.error == pytest.approx(expected.error, rel=1e-3)
    assert scaled.converged == expected.converged


def test_without_ridge_the_tolerance_still_applies() -> None:
    result = decompose(shared_tensor(), "cp", 5, SolverOptions(ridge=0.0, max_sweeps=1000))
    assert result.converged
    assert result.sweeps < 1000
