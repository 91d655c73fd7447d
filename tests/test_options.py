"""Settings that several verbs share are checked alike: lengths of rows, devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import collab
from collab.device import resolve_device

LIMITED: list[Callable[..., object]] = [
    collab.CalibrationOptions,
    collab.EvaluateOptions,
    collab.FinetuneOptions,
    collab.HealOptions,
    collab.RowOptions,
]
PLACED: list[Callable[..., object]] = [collab.BenchOptions, collab.EvaluateOptions, collab.RunOptions]


@pytest.mark.parametrize("options", LIMITED)
def test_a_row_has_at_least_three_tokens(options: Callable[..., object]) -> None:
    options(max_length=3)
    for length in (2, 0, -1):
        with pytest.raises(collab.errors.ConfigurationError, match=f"at least 3 tokens, .* not {length}"):
            options(max_length=length)


@pytest.mark.parametrize("options", PLACED)
def test_devices_are_cpu_and_cuda(options: Callable[..., object]) -> None:
    for device in (None, "cpu", "cuda"):
        options(device=device)
    with pytest.raises(collab.errors.ConfigurationError, match="device must be cpu or cuda, not 'tpu'"):
        options(device="tpu")


class TestResolveDevice:
    def test_by_name_or_by_default(self) -> None:
        best = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        assert resolve_device(None) == best
        assert resolve_device(None, torch.device("meta")) == torch.device("meta")
        assert resolve_device("cpu", best, float64=True) == torch.device("cpu")

    def test_what_is_no_device(self) -> None:
        with pytest.raises(collab.errors.ConfigurationError, match="Unknown device 'gpu'"):
            resolve_device("gpu")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    @pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "2", "LOCAL_RANK": "1"}])
    def test_no_gpu(self, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert resolve_device(None) == torch.device("cpu")
        with pytest.raises(collab.errors.DeviceError, match=r"No device 'cuda' here\. Use device=None"):
            resolve_device("cuda")


def test_a_score_of_heads_to_prune_by_is_one() -> None:
    assert collab.PruneOptions(heads=0.5, scoring=collab.ScoreOptions(("entropy",))).score == "entropy"
    assert collab.PruneOptions(keep={0: [1]}).score is None
    for scores in ((), ("entropy", "gradient")):
        with pytest.raises(collab.errors.ConfigurationError, match="One score ranks the heads"):
            collab.PruneOptions(heads=0.5, scoring=collab.ScoreOptions(scores))
