"""Several processes: the same moments, healing and predictions as one, whatever their number, and the same command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import run
from tiny import LETTERS
from together import MODELS, SHARED, TOGETHER
from transformers import AutoModel, AutoModelForSequenceClassification

import collab
from collab.processes import connect

pytest.importorskip("accelerate", reason="the train extra is not installed")

pytestmark = pytest.mark.slow
TEXT = [" ".join(LETTERS[(i * 7 + j * j) % 26] for j in range(2 + i % 9)) for i in range(40)]


def test_any_number_of_processes_gives_what_one_gives(tmp_path: Path) -> None:
    work_together(tmp_path)  # all in one test, since its imports take longer than the work
    alone, *others = (dict(np.load(tmp_path / f"{count}.npz")) for count in TOGETHER)
    for model in MODELS:
        assert {f"{model}/weights", f"{model}/2", f"{model}/5"} <= {"/".join(name.split("/")[:2]) for name in alone}
    assert alone["losses"][-1] < alone["losses"][0]
    for count, together in zip([*TOGETHER][1:], others, strict=True):
        left_out = {*MODELS, *SHARED} - TOGETHER[count]
        assert together.keys() == {name for name in alone if name.split("/")[0] not in left_out}
        for name, actual in together.items():
            expected = alone[name]
            if name.startswith(("healed/", "muon/")) or name == "losses":
                tolerance = 5e-6
            elif "/weights" in name:
                tolerance = 1e-6
            elif "/refined/" in name:
                tolerance = 1e-5
            elif name.startswith("scores/"):
                tolerance = 1e-9
            else:  # moments; predictions and the learning rate are the same
                tolerance = 1e-12 * float(np.abs(expected).max()) if "/" in name else 0.0
            np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance, err_msg=name)
    for resumed in ("whole/resumed.1", "whole/resumed.4", "shared/resumed.1"):  # of two processes, one was killed
        finished = np.load(tmp_path / f"{resumed}.npz")
        assert finished.files
        for name in finished.files:
            np.testing.assert_allclose(finished[name], alone[f"healed/{name}"], rtol=0, atol=5e-6, err_msg=name)


def work_together(folder: Path) -> None:
    line = [sys.executable, Path(__file__).with_name("together.py"), folder]
    done = subprocess.run([*map(str, line)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_convert_and_heal_under_torchrun(original: Path, tmp_path: Path) -> None:
    """A base model, of which nothing but its own class tells the processes what their shards return."""
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    AutoModel.from_pretrained(original).save_pretrained(original)
    settings = ["--rank", "16", "--calibration", tmp_path / "text.txt", "--heal", tmp_path / "text.txt"]
    settings += ["--heal-steps", "2", "--refine", "2", "--no-speed", "--json"]
    assert run("convert", original, tmp_path / "alone", *settings).exit_code == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "collab"]
    line = [*launcher, "convert", original, tmp_path / "together", *settings, "--shard"]
    done = subprocess.run([*map(str, line)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["history"]  # printed once
    assert done.stderr.count("Calibrating") == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("together")) == ["together"]
    models = [AutoModel.from_pretrained(tmp_path / name) for name in ("alone", "together")]
    for (name, ours), theirs in zip(models[1].state_dict().items(), models[0].state_dict().values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.exhaustive
def test_heal_under_accelerate(original: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    settings = ["--rank", "8", "--calibration", "none", "--no-speed"]
    assert run("convert", original, tmp_path / "converted", *settings).exit_code == 0
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", "-m", "collab"]
    line = ["heal", tmp_path / "converted", tmp_path / "healed", "--data", tmp_path / "text.txt", "--steps", "2"]
    done = subprocess.run(
        [sys.executable, "-m", *map(str, [*launcher, *line]), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == "heal"  # printed once
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "healed", trust_remote_code=True)


class TestRefusals:
    def test_a_command_that_has_no_use_for_several(self, original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        refused = run("inspect", original)
        assert refused.exit_code == 2
        assert refused.output.count("Error:") == 1
        assert "collab inspect runs in one process, but 2 were started" in refused.output

    def test_a_launcher_that_connects_no_processes(self, original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)  # as accelerate launch --cpu --num_processes 2 does
        refused = run("inspect", original)
        assert refused.exit_code == 2
        assert "but on CPUs it starts one" in refused.output

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
