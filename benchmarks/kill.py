"""What is left after a command is killed, and whether the same command then ends as if nothing had happened.

Each command that writes runs on a tiny checkpoint and gets a signal at a random moment, spread over the whole run. Most
run in a fork of this process, which has imported everything, so that the signals fall into the work; some in a process
of their own, with the signal during the imports. After it: the output is absent, or complete and loads; the input is as
it was; nothing else is left but the documented work folder (after SIGKILL also the temporary folder that nobody was
left to delete). The same command then runs again, undisturbed, and its weights are compared with those of a run that
was never disturbed. And the same command twice at once, on one output.

    python benchmarks/kill.py [--kills 20] [--stops 6] [--imports 2] [--pairs 3]

Writes results/kill.json and .md.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from common import kept, machine, markdown, my_turn, write
from safetensors.torch import load_file

import collab
import collab.training.finetune
import collab.training.heal
from collab.cli import main as main_command
from collab.cli.libraries import import_libraries

TOLERANCE = 1e-6
_TRAIN = ("--batch-size", "8", "--steps", "12", "--evaluations", "6")
COMMANDS: dict[str, tuple[str, ...]] = {
    "convert": ("convert", "native", "out", "--rank", "8", "--calibration", "text.txt", "--refine", "20"),
    "convert --heal": (
        *("convert", "native", "out", "--rank", "8", "--calibration", "text.txt", "--refine", "none"),
        *("--heal", "text.txt", "--heal-steps", "12"),
    ),
    "compress": (
        *("compress", "native", "out", "--flops", "0.7", "--calibration", "text.txt"),
        *("--heal-steps", "12"),
    ),
    "heal": ("heal", "converted", "out", "--data", "text.txt", "--teacher", "native", *_TRAIN),
    "finetune": (
        *("finetune", "native", "out", "--task", "classification", "--train", "rows.tsv", "--eval", "rows.tsv"),
        *_TRAIN,
    ),
    "prune": ("prune", "native", "out", "--per-layer", "2", "--data", "text.txt"),
    "export": ("export", "converted", "out", "--format", "onnx"),
}
WEIGHTS = ("model.safetensors", "model.onnx")


def make(folder: Path) -> None:
    """The input: a tiny classifier, its conversion, and rows."""
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=40, **sizes)
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder / "native")
    (folder / "native" / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(folder / "native" / "vocab.txt")).save_pretrained(folder / "native")
    conversion = collab.convert(model, collab.ConversionConfig(rank=8, refine="none"))
    collab.save(conversion, folder / "converted", collab.load(str(folder / "native")))
    letters = random.Random(0)
    rows = [" ".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(64)]
    (folder / "text.txt").write_text("\n".join(rows) + "\n")
    (folder / "rows.tsv").write_text("\n".join(["sentence\tlabel", *(f"{row}\t{row < 'n':d}" for row in rows)]) + "\n")


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Running:
    """A command that runs in a folder, in a fork of this process or in a process of its own."""

    def __init__(self, name: str, folder: Path, *, apart: bool = False) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        self._apart: subprocess.Popen[bytes] | None = None
        if apart:
            self._apart = subprocess.Popen(
                [sys.executable, "-m", "collab", *COMMANDS[name]],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
                # A background job's children ignore interruptions unless told otherwise.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
            self.pid = self._apart.pid
        else:
            self.pid = os.fork()
            if not self.pid:
                self._work(name, folder)

    def _work(self, name: str, folder: Path) -> None:
        """The fork's part."""
        code = 99
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(self._errors.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.chdir(folder)
            main_command(COMMANDS[name], prog_name="collab")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal; returns whether it came in time."""
        ended = self._apart.poll() is not None if self._apart else os.waitid(os.P_PID, self.pid, _LOOK) is not None
        if not ended:
            os.kill(self.pid, number)
        return not ended

    def wait(self) -> tuple[int, str]:
        """The exit code, negative for a signal, and what it said on standard error."""
        code = self._apart.wait() if self._apart else os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._errors.seek(0)
        return code, self._errors.read()


_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


def weights(output: Path) -> dict[str, torch.Tensor]:
    """The weights of an output; those of a graph by number."""
    file = next(output / name for name in WEIGHTS if (output / name).is_file())
    if file.suffix == ".safetensors":
        return load_file(file)
    import onnx
    from onnx import numpy_helper

    tensors = onnx.load(file).graph.initializer
    return {
        str(number): torch.from_numpy(numpy_helper.to_array(tensor).copy()) for number, tensor in enumerate(tensors)
    }


def difference(first: Path, second: Path) -> float:
    """The largest difference between the weights of two outputs; infinite if they are not of the same shapes."""
    one, other = weights(first), weights(second)
    if {name: tensor.shape for name, tensor in one.items()} != {name: tensor.shape for name, tensor in other.items()}:
        return float("inf")
    return max((float((one[name].double() - other[name].double()).abs().max()) for name in one), default=0.0)


def state_of(output: Path) -> str:
    """What there is at an output: absent, complete or damaged."""
    if not output.exists():
        return "absent"
    try:
        listed = (output / "collab_files.txt").read_text().split("\n")[:-1]
        if any(not (output / name).is_file() for name in listed):
            return "damaged"
        weights(output)
        if (output / "model.safetensors").is_file():
            collab.load(str(output))
    except Exception:
        return "damaged"
    return "complete"


def strays(folder: Path, before: dict[str, str], killed: bool) -> list[str]:
    """What is left besides the input, the output and the work folder."""
    known = {Path(name).parts[0] for name in before} | {"out", "out.training"}
    left = {path.name for path in folder.iterdir()} - known
    return sorted(name for name in left if not (killed and name.startswith((".out.", ".collab."))))


def disturbed(
    name: str, number: signal.Signals, after: float, base: Path, undisturbed: Path, *, apart: bool = False
) -> dict[str, Any]:
    """Runs a command, sends it a signal some seconds after its start, and runs it again."""
    with tempfile.TemporaryDirectory(prefix="collab-kill.") as top:
        folder = Path(top) / "work"
        shutil.copytree(base, folder)
        before = contents(folder)
        running = Running(name, folder, apart=apart)
        time.sleep(after)
        sent = running.send(number)
        code, said = running.wait()
        now = contents(folder)
        record: dict[str, Any] = {
            "command": name,
            "signal": number.name,
            "while importing": apart,
            "after": round(after, 3),
            "sent": sent,
            "code": code,
            "output": state_of(folder / "out"),
            "work folder": (folder / "out.training").exists(),
            "input changed": any(now.get(file) != content for file, content in before.items()),
            "strays": strays(folder, before, number == signal.SIGKILL),
            "temporary": sorted(path.name for path in folder.glob(".*")),
            "traceback": "Traceback" in said,
            "said": said.strip().splitlines()[-1:],
        }
        if record["output"] == "absent":
            code, said = Running(name, folder).wait()
            record |= {"again": code, "resumed": "Resuming" in said}
            if code:
                record["said again"] = said.strip().splitlines()[-1:]
        record["final"] = state_of(folder / "out")
        if record["final"] == "complete":
            record["difference"] = difference(folder / "out", undisturbed)
    return record


def pair(name: str, later: float, base: Path, undisturbed: Path) -> dict[str, Any]:
    """Runs a command twice on one output, the second some seconds after the first."""
    with tempfile.TemporaryDirectory(prefix="collab-kill.") as top:
        folder = Path(top) / "work"
        shutil.copytree(base, folder)
        before = contents(folder)
        first = Running(name, folder)
        time.sleep(later)
        ends = [running.wait() for running in (first, Running(name, folder))]
        record = {
            "command": name,
            "later": round(later, 3),
            "codes": sorted(code for code, _ in ends),
            "traceback": any("Traceback" in said for _, said in ends),
            "output": state_of(folder / "out"),
            "strays": [name for name in strays(folder, before, False) if name],
            "work folder": (folder / "out.training").exists(),
            "said": [said.strip().splitlines()[-1] for code, said in ends if code],
        }
        if record["output"] == "complete":
            record["difference"] = difference(folder / "out", undisturbed)
    return record


def table(records: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> str:
    """The tables of signals and of pairs."""
    rows = []
    for name in COMMANDS:
        for number in ("SIGKILL", "SIGINT", "SIGTERM"):
            some = [record for record in records if record["command"] == name and record["signal"] == number]
            if not some:
                continue
            states = Counter(record["output"] for record in some)
            same = sum(record.get("difference", 1.0) <= TOLERANCE for record in some)
            worst = max((record["difference"] for record in some if "difference" in record), default=float("nan"))
            rows.append(
                [
                    f"`{name}`, {number}",
                    *(str(count) for count in (len(some), sum(record["sent"] for record in some))),
                    *(str(states[state]) for state in ("absent", "complete", "damaged")),
                    str(sum(record["work folder"] for record in some)),
                    str(sum(bool(record["input changed"] or record["strays"]) for record in some)),
                    str(sum(record["traceback"] for record in some)),
                    str(same),
                    f"{worst:.0e}" if worst else "0",
                ]
            )
    headings = ["command, signal", "runs", "signals in time", "output absent", "complete", "damaged", "work folder"]
    headings += ["input changed or files left", "tracebacks", "same weights in the end", "largest difference"]
    text = markdown(headings, rows)
    rows = []
    for name in COMMANDS:
        several = [record for record in pairs if record["command"] == name]
        if several:
            rows.append(
                [
                    f"`{name}`",
                    str(len(several)),
                    str(sum(record["codes"] == [0, 1] for record in several)),
                    str(sum(record["codes"] == [0, 0] for record in several)),
                    str(sum(record["output"] != "complete" or bool(record["strays"]) for record in several)),
                    str(sum(record["traceback"] for record in several)),
                    str(sum(record.get("difference", 1.0) <= TOLERANCE for record in several)),
                ]
            )
    headings = ["twice at once", "pairs", "one wrote, one said why not", "both ended well", "damaged or files left"]
    return f"{text}\n\n{markdown([*headings, 'tracebacks', 'same weights'], rows)}"


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs for each command.")
    parser.add_argument("--stops", type=int, default=6, help="SIGINTs, and SIGTERMs, for each command.")
    parser.add_argument("--imports", type=int, default=2, help="More of each signal, while a command imports.")
    parser.add_argument("--pairs", type=int, default=3, help="Pairs for each command.")
    parser.add_argument("--command", choices=list(COMMANDS), help="Only this one; the others' results are kept.")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    import_libraries(0)
    draw = random.Random(0)
    records: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    names = [wanted.command] if wanted.command else list(COMMANDS)
    with tempfile.TemporaryDirectory(prefix="collab-kill.") as top:
        base = Path(top) / "base"
        make(base)
        for name in names:
            folder = Path(top) / name.replace(" ", "")
            taken = []
            for _ in range(2):  # the second time, the system has seen it all
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(base, folder)
                began = time.monotonic()
                code, said = Running(name, folder).wait()
                taken.append(time.monotonic() - began)
                if code:
                    raise SystemExit(f"{name} fails undisturbed: {said}")
            for number, count in (
                (signal.SIGKILL, wanted.kills),
                (signal.SIGINT, wanted.stops),
                (signal.SIGTERM, wanted.stops),
            ):
                for place in range(count):
                    after = min(taken) * (place + draw.random()) / count  # spread over the whole run
                    records.append(disturbed(name, number, after, base, folder / "out"))
                    print(records[-1], file=sys.stderr, flush=True)
                for _ in range(wanted.imports):
                    after = 0.1 + 2 * draw.random()
                    records.append(disturbed(name, number, after, base, folder / "out", apart=True))
                    print(records[-1], file=sys.stderr, flush=True)
            for place in range(wanted.pairs):
                pairs.append(pair(name, min(taken) * place / (wanted.pairs + 1), base, folder / "out"))
                print(pairs[-1], file=sys.stderr, flush=True)
    with my_turn("kill"):
        before = kept("kill")
        records = [record for record in before.get("signals", []) if record["command"] not in names] + records
        pairs = [record for record in before.get("pairs", []) if record["command"] not in names] + pairs
        result = {"machine": machine(), "tolerance": TOLERANCE, "signals": records, "pairs": pairs}
        write("kill", result, table(records, pairs))


if __name__ == "__main__":
    main()
