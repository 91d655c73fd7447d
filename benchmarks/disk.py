"""What is left when the disk becomes full, and whether the same command then ends as if nothing had happened.

Each command that writes runs on a disk of its own, in memory, of many sizes: from no free space to as much as the
command needs, so that the disk becomes full at any write. After it: one message, no traceback, the output absent, the
input as it was, and nothing else but the documented work folder. The disk is then made large enough, the same command
runs again, and its weights are compared with those of a run on a large disk. And the same with a disk that is
read-only.

    python benchmarks/disk.py [--sizes 20] [--command COMMAND]

Needs the right to mount. Writes results/disk.json and .md.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from common import kept, machine, markdown, my_turn, write
from kill import COMMANDS, TOLERANCE, Running, contents, difference, make, state_of, strays
from small_disk import change, small_disk, used

from collab.cli.libraries import import_libraries

LARGE = 2**28


def needed(name: str, base: Path, top: Path) -> int:
    """Bytes that a command writes at most; leaves what it writes in `top`/undisturbed.

    Found by halving, since it also writes what it deletes again.
    """
    shutil.copytree(base, top / "undisturbed")
    code, said = Running(name, top / "undisturbed").wait()
    if code:
        raise SystemExit(f"{name} fails undisturbed: {said}")
    low, high = 0, 2**22
    while high - low > 2**15:
        middle = (low + high) // 2
        record = filled(name, middle, base, top / "undisturbed" / "out", again=False)
        low, high = (low, middle) if record["output"] == "complete" else (middle, high)
    return high


def filled(
    name: str, free: int, base: Path, undisturbed: Path, *, again: bool = True, mode: str = ""
) -> dict[str, Any]:
    """Runs a command on a disk with some free bytes, and again on a large one."""
    with tempfile.TemporaryDirectory(prefix="collab-disk.") as top, small_disk(Path(top) / "work", LARGE) as folder:
        shutil.copytree(base, folder, dirs_exist_ok=True)
        before = contents(folder)
        change(folder, mode or f"size={used(folder) + free}")
        code, said = Running(name, folder).wait()
        now = contents(folder)
        message = said[said.index("Error: ") :].strip() if "Error: " in said else ""
        record: dict[str, Any] = {
            "command": name,
            "disk": mode or "full",
            "free": free,
            "code": code,
            "output": state_of(folder / "out"),
            "work folder": (folder / "out.training").exists(),
            "input changed": any(now.get(file) != content for file, content in before.items()),
            "strays": strays(folder, before, killed=False),
            "traceback": "Traceback" in said,
            "message": shown(message, folder),
        }
        if again and record["output"] == "absent":
            change(folder, f"rw,size={LARGE}")
            code, said = Running(name, folder).wait()
            record |= {"again": code, "resumed": "Resuming" in said}
            if code:
                record["said again"] = said.strip().splitlines()[-1:]
            if state_of(folder / "out") == "complete":
                record["difference"] = difference(folder / "out", undisturbed)
    return record


def shown(message: str, folder: Path) -> str:
    """A message without what differs from run to run."""
    plain = message.replace(str(folder), "FOLDER").replace(str(Path(__file__).parents[1]), "CODE")
    return re.sub(r"(?<=\.)[a-z0-9_]{8}(?=[./'])", "RANDOM", plain)


def table(records: list[dict[str, Any]]) -> str:
    """The table of commands."""
    rows = []
    for name in COMMANDS:
        for disk in ("full", "ro"):
            some = [record for record in records if record["command"] == name and record["disk"] == disk]
            if not some:
                continue
            refused = [record for record in some if record["output"] != "complete"]
            rows.append(
                [
                    f"`{name}`, {'read-only' if disk == 'ro' else 'full'}",
                    str(len(some)),
                    str(sum(record["output"] == "absent" for record in some)),
                    str(sum(record["output"] == "complete" for record in some)),
                    str(sum(record["output"] == "damaged" for record in some)),
                    str(sum(record["work folder"] for record in refused)),
                    str(sum(bool(record["input changed"] or record["strays"]) for record in some)),
                    str(sum(record["traceback"] for record in some)),
                    str(sum(record["code"] == 1 and 0 < record["message"].count("\n") + 1 < 10 for record in refused)),
                    str(sum(record.get("difference", 1.0) <= TOLERANCE for record in refused)),
                ]
            )
    headings = ["command, disk", "runs", "output absent", "complete", "damaged", "work folder"]
    headings += ["input changed or files left", "tracebacks", "one message", "same weights when run again"]
    said = list(dict.fromkeys(record["message"] for record in records if record["message"]))
    return markdown(headings, rows) + "\n\nWhat they said:\n\n```text\n" + "\n".join(said) + "\n```"


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=20, help="Sizes of the disk for each command.")
    parser.add_argument("--command", choices=list(COMMANDS), help="Only this one; the others' results are kept.")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    import_libraries(0)
    names = [wanted.command] if wanted.command else list(COMMANDS)
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="collab-disk.") as top:
        base = Path(top) / "base"
        make(base)
        for name in names:
            folder = Path(top) / name.replace(" ", "")
            most = needed(name, base, folder)
            frees = [most * place // wanted.sizes for place in range(wanted.sizes)]
            cases = [(free, "") for free in frees] + [(0, "ro")]
            for free, mode in cases:
                records.append(filled(name, free, base, folder / "undisturbed" / "out", mode=mode))
                print(records[-1], file=sys.stderr, flush=True)
    with my_turn("disk"):
        records = [entry for entry in kept("disk").get("runs", []) if entry["command"] not in names] + records
        write("disk", {"machine": machine(), "tolerance": TOLERANCE, "runs": records}, table(records))


if __name__ == "__main__":
    main()
