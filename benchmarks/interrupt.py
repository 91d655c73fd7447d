"""What Ctrl-C shows in the first two seconds of a command.

Each command gets SIGINT once, at one of many moments, most of them in the first 0.3 seconds, when Python itself starts.
A process that has no handler yet ends without a word. Python then sets its own, which shows a traceback, until the
first line of collab/__main__.py, which sets collab's. From then on there is one message.

    python benchmarks/interrupt.py [--step 0.002]

Writes results/interrupt.json and .md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import machine, markdown, write

import collab

COMMANDS = {
    "python -m collab": [sys.executable, "-m", "collab"],
    "collab": [shutil.which("collab", path=Path(sys.executable).parent) or ""],
}
CODE = Path(collab.__file__).parents[1]
MESSAGE = "Error: Interrupted. Nothing was written.\n"
WHAT = {
    "no word": "no word, since Python had no handler yet",
    "Python": "traceback of Python's own start",
    "import collab": "traceback of `import collab`",
    "collab": "traceback of anything later",
    "message": "one message",
    "else": "anything else",
}


def shown(line: list[str], after: float) -> tuple[str, str]:
    """What a command shows that is interrupted some seconds after its start: a key of WHAT, and the text."""
    with tempfile.TemporaryDirectory(prefix="collab-interrupt.") as top:
        process = subprocess.Popen(
            [*line, "convert", top, f"{top}/out", "--rank", "8"],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(CODE)},
            # A background job's children ignore interruptions unless told otherwise.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    if "Traceback" in said:
        frames = [name for name in said.split('"') if name.startswith(str(CODE / "collab"))]
        if not frames:
            return "Python", said
        started = any(Path(name).name == "__main__.py" for name in frames)
        return "collab" if started else "import collab", said
    if process.returncode == 1 and said.endswith(MESSAGE):
        return "message", said
    return "no word" if process.returncode == -signal.SIGINT and not said else "else", said


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=float, default=0.002, help="Seconds between moments, at first.")
    wanted = parser.parse_args()
    moments = [number * wanted.step for number in range(int(0.3 / wanted.step))]
    moments += [0.3 + 0.05 * number for number in range(35)]
    records: list[dict[str, Any]] = []
    rows = []
    for name, line in COMMANDS.items():
        for after in moments:
            what, said = shown(line, after)
            records.append({"command": name, "after": round(after, 4), "shown": what})
            if what in ("collab", "import collab", "else"):
                records[-1]["said"] = said
        counts = Counter(record["shown"] for record in records if record["command"] == name)
        last = max(
            (record["after"] for record in records if record["command"] == name and record["shown"] != "message"),
            default=0.0,
        )
        rows.append([f"`{name}`", str(len(moments)), *(str(counts[what]) for what in WHAT), f"{last:.3f}"])
    result = {"machine": machine(), "moments": records}
    headings = ["command", "interruptions", *WHAT.values(), "last without the message, s"]
    write("interrupt", result, markdown(headings, rows))


if __name__ == "__main__":
    main()
