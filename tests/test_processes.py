"""Several processes: the same moments, healing and predictions as one, whatever their number, and the same command."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run
from tiny import LETTERS
from together import COUNTS, MODELS
from transformers import AutoModelForSequenceClassification

import collab
from collab.processes import connect

pytest.importorskip("accelerate", reason="the train extra is not installed")

Results = dict[int, Mapping[str, Any]]
TEXT = [" ".join(LETTERS[(i * 7 + j * j) % 26] for j in range(2 + i % 9)) for i in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `together` leaves."""
    folder = tmp_path_factory.mktemp("together")
    script = Path(__file__).with_name("together.py")
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    """The results of every number of processes."""
    return {count: dict(np.load(folder / f"{count}.npz")) for count in COUNTS}


class TestTheSameAsOne:
    @pytest.mark.parametrize("count", COUNTS[1:])
    @pytest.mark.parametrize("model", MODELS)
    def test_moments_and_conversion(self, results: Results, model: str, count: int) -> None:
        alone, together = results[1], results[count]
        names = [name for name in alone if name.startswith(f"{model}/")]
        assert any("/weights/" in name for name in names)
        assert any("/held/" in name for name in names)
        for name in names:
            tolerance = {"atol": 1e-6} if "/weights/" in name else {"atol": 1e-12 * np.abs(alone[name]).max()}
            np.testing.assert_allclose(together[name], alone[name], rtol=0, err_msg=name, **tolerance)

    @pytest.mark.parametrize("count", COUNTS[1:])
    def test_healing(self, results: Results, count: int) -> None:
        alone, together = results[1], results[count]
        assert alone["losses"][-1] < alone["losses"][0]
        np.testing.assert_array_equal(together["rate"], alone["rate"])
        for name in ("losses", *(name for name in alone if name.startswith("healed/"))):
            np.testing.assert_allclose(together[name], alone[name], rtol=0, atol=5e-6, err_msg=name)

    @pytest.mark.parametrize("count", COUNTS[1:])
    def test_predictions_are_in_the_order_of_the_rows(self, results: Results, count: int) -> None:
        for name in ("predicted", "label"):
            np.testing.assert_array_equal(results[count][name], results[1][name])

    @pytest.mark.parametrize("count", [1, 4])
    def test_healing_of_which_a_process_was_killed_goes_on_in_any_number(
        self, folder: Path, results: Results, count: int
    ) -> None:
        resumed = np.load(folder / f"resumed.{count}.npz")
        assert resumed.files
        for name in resumed.files:
            np.testing.assert_allclose(resumed[name], results[1][f"healed/{name}"], rtol=0, atol=5e-6, err_msg=name)


def test_convert_and_heal_under_torchrun(original: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    settings = ["--rank", "16", "--calibration", tmp_path / "text.txt", "--heal", tmp_path / "text.txt"]
    settings += ["--heal-steps", "2", "--refine", "2", "--no-speed", "--json"]
    assert run("convert", original, tmp_path / "alone", *settings).exit_code == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "collab"]
    line = [*launcher, "convert", original, tmp_path / "together", *settings]
    done = subprocess.run([*map(str, line)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["history"]  # printed once
    assert done.stderr.count("Calibrating") == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("together")) == ["together"]
    models = [AutoModelForSequenceClassification.from_pretrained(tmp_path / name) for name in ("alone", "together")]
    for (name, ours), theirs in zip(models[1].state_dict().items(), models[0].state_dict().values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5, err_msg=name)


class TestRefusals:
    def test_a_command_that_has_no_use_for_several(self, original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        refused = run("inspect", original)
        assert refused.exit_code == 2
        assert refused.output.count("Error:") == 1
        assert "collab inspect runs in one process, but 2 were started" in refused.output

    def test_only_the_main_process_says_why(self, original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"WORLD_SIZE": "2", "RANK": "1"}.items():
            monkeypatch.setenv(name, value)
        for refused in (run("inspect", original), run("convert", original)):
            assert (refused.exit_code, refused.output) == (2, "")

    def test_a_port_in_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1])}
            for name, value in {"WORLD_SIZE": "2", "RANK": "0", **address}.items():
                monkeypatch.setenv(name, value)
            with pytest.raises(collab.errors.ProcessError, match="Process 0 of 2 cannot reach the others at 127"):
                connect()
