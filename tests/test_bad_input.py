"""Bad input: one message that says what to do, exit code 1 or 2, nothing written, and the input as it was.

These tests run some of the generated cases; benchmarks/bad_input.py runs all of them, thousands.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers
from bad_cases import CASES, LABELLED, LINES, TEXT, Case
from forks import CRASHED, Forks, Job, Outcome, forks
from tiny import BERT, BY_TYPE, LETTERS, SPECIAL, save_with_tokenizer, tiny_model

import collab

SECRET = "what the folder outside holds"
LIMIT = 120.0


def make_bases(folder: Path) -> Path:
    """The undamaged checkpoints: a native classifier, its conversion, and a model of images."""
    words = (*SPECIAL, *LETTERS)
    classifier = tiny_model(
        BERT,
        transformers.BertForSequenceClassification,
        vocab_size=len(words),
        pad_token_id=0,
        id2label={0: "0", 1: "1"},
    )
    save_with_tokenizer(classifier, folder / "native", words)
    config = collab.ConversionConfig(rank=8, compare=False, refine="none")
    collab.save(collab.convert(collab.load(str(folder / "native")), config), folder / "converted")
    report = folder / "converted" / "collab_report.json"
    report.write_text(json.dumps(json.loads(report.read_text()) | {"source": str(folder / "native")}))
    tiny_model(BY_TYPE["vit"], transformers.ViTForImageClassification).save_pretrained(folder / "image")
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    (folder / "image" / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def prepare(case: Case, bases: Path, folder: Path) -> None:
    """Makes what a case runs on."""
    shutil.copytree(bases / case.base, folder / "model")
    (folder / "text.txt").write_text(TEXT)
    (folder / "labelled.tsv").write_text(LABELLED)
    (folder / "outside").mkdir()
    (folder / "outside" / "secret.txt").write_text(SECRET)
    shutil.copyfile(bases / "native" / "model.safetensors", folder / "outside" / "model.safetensors")
    (folder / "link").symlink_to("model")
    (folder / "dangling").symlink_to("nowhere/at/all")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe.tsv")
    case.prepare(folder)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Everything below a folder: the content of files, where links lead, and folders."""
    seen = {}
    for top, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(top) / name
            content = b"folder"
            if path.is_symlink():
                content = os.fsencode(os.readlink(path))
            elif path.is_file():
                content = path.read_bytes()
            seen[os.fspath(path.relative_to(folder))] = content
    return seen


def shortcoming(case: Case, outcome: Outcome, before: dict[str, bytes], after: dict[str, bytes]) -> str | None:
    """How a case falls short of what has to hold; None if it does not."""
    new = {name for name in after if name not in before}
    if any(Path(name).name == "attacked" for name in new):
        return "code ran"
    if any(SECRET.encode() in after[name] for name in new):
        return "a file from outside was copied"
    if any(after.get(name) != content for name, content in before.items() if not _may_change(case, outcome, name)):
        return "the input changed"
    if outcome.code < 0:
        return "hung" if outcome.seconds >= LIMIT else f"killed by signal {-outcome.code}"
    if outcome.code == CRASHED or "Traceback" in outcome.stderr:
        return "a traceback"
    if outcome.code == 0:
        if case.refused:
            return "accepted"
        if any(".partial" in name for name in new):
            return "something was left behind"
        return None
    if outcome.code not in (1, 2):
        return f"exit code {outcome.code}"
    if not any(line.startswith("Error: ") for line in outcome.stderr.splitlines()):
        return "no message"
    message = outcome.stderr[outcome.stderr.index("Error: ") :]
    if len(message.splitlines()) >= 10 or len(message) > 2000:
        return "a long message"
    return f"left {sorted(new)[0]}" if new else None


def _may_change(case: Case, outcome: Outcome, name: str) -> bool:
    """`collab evaluate --record` adds to report and card."""
    recorded = "--record" in case.line and outcome.code == 0
    return recorded and name in ("model/collab_report.json", "model/README.md")


def run(case: Case, bases: Path, folder: Path, running: Forks) -> tuple[Outcome, str | None]:
    """Runs a case in a new folder; returns the outcome and how it falls short."""
    prepare(case, bases, folder)
    before = snapshot(folder)
    outcome = running.run(Job(list(case.line), str(folder), seconds=LIMIT))
    return outcome, shortcoming(case, outcome, before, snapshot(folder))


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="session")
def running() -> Iterator[Forks]:
    with forks() as process:
        yield process


@pytest.mark.parametrize("command", LINES)
def test_undamaged_input_is_accepted(command: str, bases: Path, tmp_path: Path, running: Forks) -> None:
    """Or else what follows would show nothing."""
    case = next(case for case in CASES if case.command == command and case.kind == "trust")
    harmless = Case(command, "", "", case.base, case.line, lambda folder: None, refused=False)
    outcome, short = run(harmless, bases, tmp_path, running)
    assert outcome.code == 0, outcome.stderr
    assert short is None


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES if case.fast])
def test_bad_input_is_refused_with_a_message(case: Case, bases: Path, tmp_path: Path, running: Forks) -> None:
    outcome, short = run(case, bases, tmp_path, running)
    assert short is None, f"{short}\n{outcome.stdout}\n{outcome.stderr}"
