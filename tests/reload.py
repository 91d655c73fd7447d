"""Loading exports in a separate process, where collab cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from tiny import largest_difference, of_seen
from transformers import AutoModel

# Each job: an export, the Auto class to load it with, inputs saved with torch, and where to save the outputs.
_LOADER = """
import json, sys
sys.modules["collab"] = None  # importing it fails from here on
import torch, transformers
transformers.logging.set_verbosity_error()
for job in json.load(open(sys.argv[1])):
    trust = job.get("trust_remote_code", True)
    if job["auto_class"] == "SentenceTransformer":
        from sentence_transformers import SentenceTransformer
        model = SentenceTransformer(job["folder"], trust_remote_code=trust)
        outputs = {"embeddings": model.encode(job["sentences"], convert_to_tensor=True)}
    elif job["auto_class"] == "CrossEncoder":
        from sentence_transformers import CrossEncoder
        model = CrossEncoder(job["folder"], trust_remote_code=trust)
        outputs = {"scores": model.predict([job["sentences"]] * 2, convert_to_tensor=True)}
    else:
        auto_class = getattr(transformers, job["auto_class"])
        model = auto_class.from_pretrained(job["folder"], trust_remote_code=trust)
        with torch.no_grad():
            result = model(**torch.load(job["inputs"]))
        outputs = {name: value for name, value in result.items() if isinstance(value, torch.Tensor)}
    torch.save(outputs, job["outputs"])
assert not any(name.partition(".")[0] == "collab" for name, module in sys.modules.items() if module is not None)
"""


def run_without_collab(code: str, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own, with its own cache of remote code and no Hub."""
    environment = os.environ | {"HF_MODULES_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=600,
        check=False,
    )


def error_without_trust(folder: Path, cache: Path) -> str:
    """What transformers says last where neither collab nor the code of an export may be used."""
    return errors_without_trust([folder], cache)[0]


def errors_without_trust(folders: list[Path], cache: Path) -> list[str]:
    """The same for several exports, which all have to be refused."""
    code = """
import json, sys
sys.modules["collab"] = None
from transformers import AutoModel
for folder in sys.argv[1:]:
    try:
        AutoModel.from_pretrained(folder)
    except Exception as error:
        print(json.dumps(str(error).splitlines()[-1]), file=sys.stderr)
"""
    done = run_without_collab(code, *map(str, folders), cache=cache)
    messages = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('"')]
    assert len(messages) == len(folders), done.stderr
    return messages


def outputs_without_collab(jobs: list[dict], folder: Path) -> list[dict[str, torch.Tensor]]:
    """What exports compute where collab is not there.

    Args:
        jobs: each with ``folder``, ``auto_class`` and ``inputs``, or ``sentences`` for SentenceTransformer; and perhaps
            ``trust_remote_code``, which is True otherwise.
        folder: for the files that go between the processes.
    """
    written = []
    for number, job in enumerate(jobs):
        entry = {key: str(value) if isinstance(value, Path) else value for key, value in job.items() if key != "inputs"}
        entry["outputs"] = str(folder / f"outputs-{number}.pt")
        if "inputs" in job:
            entry["inputs"] = str(folder / f"inputs-{number}.pt")
            torch.save(job["inputs"], entry["inputs"])
        written.append(entry)
    (folder / "jobs.json").write_text(json.dumps(written))
    done = run_without_collab(_LOADER, str(folder / "jobs.json"), cache=folder / "modules")
    assert done.returncode == 0, done.stderr
    return [torch.load(entry["outputs"]) for entry in written]


def check_reloads(exports: dict[Path, dict[str, torch.Tensor]], folder: Path) -> None:
    """Checks that exports load as classes of collab, and in a process without it, with the same outputs.

    Args:
        exports: the inputs of every export.
        folder: as in `outputs_without_collab`.
    """
    jobs = [{"folder": export, "auto_class": "AutoModel", "inputs": inputs} for export, inputs in exports.items()]
    for (export, inputs), remote in zip(exports.items(), outputs_without_collab(jobs, folder), strict=True):
        model = AutoModel.from_pretrained(export)
        assert type(model).__module__.startswith("collab.")
        with torch.no_grad():
            expected = of_seen(model(**inputs), inputs)
        assert largest_difference(expected, of_seen(remote, inputs)) < 1e-5, export.name
