"""All generated bad input, what fell short, and every message as printed.

The cases and what has to hold of each are those of tests/test_bad_input.py, whose quick tests run a part of them.

    python benchmarks/bad_input.py --records FILE [--kind KIND] [--command COMMAND] [--name TEXT] [--again]

Each outcome is added to FILE, so that a run can be stopped and goes on where it was; --again runs only what fell short.
From all that is in FILE, writes results/bad_input.json and .md, with what fell short when a case was first run and when
it was last run, and results/bad_input_messages.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import transformers
from bad_cases import CASES, LINES, Case
from common import RESULTS, kept, markdown, write
from forks import Forks, forks
from test_bad_input import make_bases, run

Record = dict[str, Any]


def record_of(case: Case, bases: Path, top: Path, running: Forks) -> Record:
    """Runs a case; returns what became of it."""
    folder = top / "case"  # of one name for all, which messages show
    folder.mkdir()
    outcome, fault = run(case, bases, folder, running)
    shutil.rmtree(folder)
    _, found, message = outcome.stderr.partition("Error: ")
    message = (found + message).strip() if outcome.code else ""
    return {
        "case": case.id,
        "command": case.command,
        "kind": case.kind,
        "name": case.name.encode("unicode_escape").decode(),
        "code": outcome.code,
        "seconds": round(outcome.seconds, 2),
        "fault": fault,
        "message": message.replace(str(folder), "FOLDER"),
        "said": outcome.stderr[-2000:] if fault else "",
    }


def by_kind(records: list[Record], first: dict[str, Record], before: dict[str, Any]) -> str:
    """The table of kinds: how many cases there are, and how many fell short."""
    rows = []
    sampled = Counter(dict.fromkeys(before, 0))
    for kind, (cases, _) in before.items():
        sampled[kind] = cases
    for kind in dict.fromkeys(record["kind"] for record in records):
        some = [record for record in records if record["kind"] == kind]
        rows.append(
            [
                kind,
                *map(str, before.get(kind, (0, 0))),
                str(len(some)),
                str(sum(first[record["case"]]["fault"] is not None for record in some)),
                str(sum(record["fault"] is not None for record in some)),
            ]
        )
    rows.append(["all", *(str(sum(int(row[column]) for row in rows)) for column in range(1, 6))])
    return markdown(
        ["what is bad", "sample before", "fell short", "cases", "fell short at first", "fall short now"], rows
    )


def by_command(records: list[Record]) -> str:
    """The table of commands by kinds: how many cases, and of these, how many fall short."""
    counts = Counter((record["command"], record["kind"]) for record in records)
    short = Counter((record["command"], record["kind"]) for record in records if record["fault"] is not None)

    def cell(some: list[tuple[str, str]]) -> str:
        fell = sum(short[each] for each in some)
        return f"{sum(counts[each] for each in some)}" + (f" ({fell})" if fell else "")

    kinds = list(dict.fromkeys(record["kind"] for record in records))
    rows = [
        [
            kind,
            *(cell([(command, kind)]) for command in LINES),
            cell([(command, kind) for command in LINES]),
        ]
        for kind in kinds
    ]
    totals = [cell([(command, kind) for kind in kinds]) for command in LINES]
    rows.append(["all", *totals, cell(list(counts))])
    return markdown(["cases (fall short)", *LINES, "all"], rows)


def messages(records: list[Record]) -> str:
    """Every message as printed, by kind; a message that several cases give stands once."""
    parts = [
        "# Every message of the generated bad input, as printed",
        "Made by `benchmarks/bad_input.py`. `FOLDER` stands for the folder that the command ran in. Before each "
        "message: what was bad, in how many commands.",
    ]
    accepted = Counter(record["kind"] for record in records if not record["code"])
    for kind in dict.fromkeys(record["kind"] for record in records):
        by_message: dict[str, Counter[str]] = {}
        for record in records:
            if record["kind"] == kind and record["message"]:
                text = re.sub(r"[ \t]+$", "", record["message"], flags=re.MULTILINE)
                by_message.setdefault(text, Counter())[record["name"]] += 1
        parts.append(f"## {kind}")
        if accepted[kind]:
            parts.append(f"{accepted[kind]} cases did no harm, and the command did its work.")
        for text, names in by_message.items():
            shown = [f"`{name}` ({count})" for name, count in names.most_common(4)]
            more = [f"{len(names) - 4} more"] if len(names) > 4 else []
            parts.append(f"{', '.join(shown + more)}:\n\n```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def write_results(attempts: list[Record]) -> None:
    """Writes the tables and the messages."""
    known = {case.id for case in CASES}
    attempts = [record for record in attempts if record["case"] in known]
    first = {record["case"]: record for record in reversed(attempts)}
    last = {record["case"]: record for record in attempts}
    records = [last[case.id] for case in CASES if case.id in last]
    before = kept("bad_input").get("before", {})
    result = {
        "before": before,
        "generated": len(CASES),
        "cases": [
            {"command": command, "kind": kind, "count": count}
            for (command, kind), count in Counter((record["command"], record["kind"]) for record in records).items()
        ],
        "seconds": round(sum(record["seconds"] for record in records)),
        "codes": dict(Counter(str(record["code"]) for record in records)),
        "short at first": [
            {name: record[name] for name in ("command", "kind", "name", "fault")}
            for record in first.values()
            if record["fault"] is not None
        ],
        "short now": [
            {name: record[name] for name in ("command", "kind", "name", "fault")}
            for record in records
            if record["fault"] is not None
        ],
    }
    sampled = Counter[str]()
    for entry in before.get("cases", []):
        sampled[entry["kind"]] += entry["count"]
    fell = Counter(entry["kind"] for entry in before.get("short", []))
    earlier = {kind: (count, fell[kind]) for kind, count in sampled.items()}
    table = f"{by_kind(records, first, earlier)}\n\n{by_command(records)}"
    write("bad_input", result, f"{len(records):,} of {len(CASES):,} cases.\n\n{table}")
    (RESULTS / "bad_input_messages.md").write_text(messages(records))


def main() -> None:
    """Runs the cases that are wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--records", type=Path, required=True, help="Outcomes, one a line; those in it are not run again."
    )
    parser.add_argument("--kind")
    parser.add_argument("--command")
    parser.add_argument("--name", default="", help="Only cases whose name contains this.")
    parser.add_argument("--again", action="store_true", help="Run again what fell short.")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    attempts: list[Record] = []
    if wanted.records.exists():
        attempts = [json.loads(line) for line in wanted.records.read_text().splitlines()]
    last = {record["case"]: record for record in attempts}
    # Spread, should it be stopped; and last what takes long: exports, and what may do no harm.
    spread = [case for start in range(8) for case in CASES[start::8]]
    cases = [
        case
        for case in sorted(spread, key=lambda case: (case.id not in last, case.command == "export", not case.refused))
        if (wanted.kind in (None, case.kind))
        and (wanted.command in (None, case.command))
        and wanted.name in case.name
        and (last[case.id]["fault"] is not None if wanted.again and case.id in last else case.id not in last)
    ]
    with (
        tempfile.TemporaryDirectory(prefix="collab-bad.") as top,
        forks() as running,
        wanted.records.open("a") as file,
    ):
        bases = make_bases(Path(top) / "bases")
        for case in cases:
            record = record_of(case, bases, Path(top), running)
            attempts.append(record)
            file.write(json.dumps(record) + "\n")
            file.flush()
            if record["fault"] is not None:
                print(f"{record['fault']}  {case.id}\n    {record['said'][-300:]}", file=sys.stderr, flush=True)
    write_results(attempts)


if __name__ == "__main__":
    main()
