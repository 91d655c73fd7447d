"""The documentation says what is true: names, commands, options and links exist, and the examples run."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import collab
import collab.decomposition
from collab.cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
API = sorted((DOCS / "api").glob("*.md"))
BENCHMARKS = sorted((DOCS / "benchmarks").glob("*.md"))
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")), *BENCHMARKS, *API]
"""Not the changelog, which names what is gone."""

EXAMPLES = {
    "classifier_budget": r"query/key parameters left: 3\d%",
    "compress_and_serve": r"layers left: 50%[\s\S]*exhibition\? -> The museum",
    "compress_classifier": r"layers left: 50%[\s\S]*P\(liked\)",
    "convert_embedder": r"exhibition\? -> The museum",
    "heads_and_prune": r"heads: 72 before, 54 after",
    "heal_on_text": r"improved: True",
    "python_api": r"reloaded as CollabBertModel",
    "train_from_scratch": r"on other rows: (\S+)\nconverted, on the same: \1\n",
}
"""Every example, and what it prints."""

QUICK = "heads_and_prune"

LONG = (
    "classifier_budget",
    "compress_and_serve",
    "compress_classifier",
    "convert_embedder",
    "heal_on_text",
    "python_api",
    "train_from_scratch",
)
"""Examples of steps that others take too."""


def test_every_public_name_is_on_a_page_of_the_api_reference() -> None:
    public = {f"collab.{name}" for name in collab.__all__} - {"collab.checkpoints", "collab.errors", "collab.nn"}
    for package in (collab.checkpoints, collab.decomposition, collab.nn):
        public |= {f"{package.__name__}.{name}" for name in package.__all__}
    documented = {name for page in API for name, _ in _directives(page)}
    assert "collab.errors" in documented  # with all its classes
    assert sorted(public - documented) == ["collab.CollabError"]  # which is on that page
    assert not documented - public - {"collab.errors"}, "on a page, but not public"


def test_every_error_is_on_the_page_of_errors() -> None:
    shown = re.search(r'filters: \["(.*)"\]', (DOCS / "api" / "errors.md").read_text(encoding="utf-8"))
    assert shown is not None
    errors = [name for name, value in vars(collab.errors).items() if isinstance(value, type)]
    assert errors
    assert all(re.search(shown[1], name) for name in errors)


@pytest.mark.parametrize("page", API, ids=lambda page: page.stem)
def test_a_page_of_the_api_reference_shows_what_its_headings_say(page: Path) -> None:
    for name, path in _directives(page):
        assert _resolve(name) is _resolve(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_the_documentation_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in sorted(set(re.findall(r"(?<![\w/.-])collab(?:\.[A-Za-z]\w*)+", text))):
        if not name.endswith((".md", ".py", ".egg")):
            _resolve(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_documentation_are_accepted_by_the_command_line(page: Path) -> None:
    for line in _commands(page.read_text(encoding="utf-8")):
        name, *arguments = line
        assert name in main.commands, f"there is no command collab {name}"
        try:
            main.commands[name].make_context(name, arguments)
        except click.exceptions.Exit:  # --help
            pass
        except click.ClickException as error:
            pytest.fail(f"collab {shlex.join(line)}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_the_documentation_exist(page: Path) -> None:
    known = {
        option
        for command in main.commands.values()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"`((?:--|collab )[^`]*)`", prose):
        unknown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", span)) - known
        assert not unknown, f"`{span}` names {unknown}"
        if found := re.match(r"collab ([a-z]\w*)", span):
            assert found[1] in main.commands, f"`{span}`"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in _anchors(linked), f"{page.name} links to {target}"


def test_the_table_of_the_readme_is_the_one_that_the_benchmark_wrote() -> None:
    assert (RESULTS / "frontier.md").read_text(encoding="utf-8").strip() in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("table", sorted(RESULTS.glob("*.md")), ids=lambda table: table.stem)
def test_the_tables_of_the_benchmarks_are_no_wider_than_a_page(table: Path) -> None:
    if table.stem != "pruning":  # its columns are ten fractions of heads, with numbers of three digits
        rows = [line for line in table.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        assert max(row.count("|") for row in rows) <= 11


@pytest.mark.parametrize("page", BENCHMARKS, ids=lambda page: page.stem)
def test_every_benchmark_is_in_the_summary(page: Path) -> None:
    assert f"(benchmarks/{page.name})" in (DOCS / "benchmarks.md").read_text(encoding="utf-8")


def test_packages_import_only_from_those_above_them_in_the_architecture() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    order = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    folders = {file.parent.name for file in (ROOT / "collab").glob("*/*.py")}
    modules = {file.stem for file in (ROOT / "collab").glob("*.py") if not file.stem.startswith("__")}
    assert {*order} == folders | modules
    for number, name in enumerate(order):
        above = {*order[: number + 1]}
        for file in (ROOT / "collab" / name).rglob("*.py"):
            assert _imported(file) & {*order} <= above, f"{file} imports {_imported(file) & {*order} - above}"


def test_every_example_is_on_the_page_of_examples() -> None:
    assert {file.stem for file in (DOCS / "examples").glob("*.py")} == {*EXAMPLES}
    page = (DOCS / "examples.md").read_text(encoding="utf-8")
    assert all(f'--8<-- "docs/examples/{name}.py"' in page for name in EXAMPLES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name != QUICK) + [pytest.mark.exhaustive] * (name in LONG))
        for name in EXAMPLES
    ],
)
@pytest.mark.filterwarnings("default")
def test_an_example_runs_and_writes_only_into_its_folder(
    name: str,
    demo_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("sentence_transformers")
    here, output, example = tmp_path / "here", tmp_path / "output", DOCS / "examples" / f"{name}.py"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(example), str(output)])
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(EXAMPLES[name], printed), printed
    assert not list(here.iterdir())


def _directives(page: Path) -> Iterator[tuple[str, str]]:
    """The public name and the path of everything that a page of the API reference shows."""
    pattern = r"^::: (\S+)\n(?:    options:\n(?:      .*\n)*?      heading: (\S+)\n)?"
    for path, heading in re.findall(pattern, page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        yield heading or path, path


def _resolve(name: str) -> Any:
    """What a dotted name stands for. A function comes before a module of its name, unless the name goes on."""
    found: Any = importlib.import_module("collab")
    path = "collab"
    *parents, last = name.split(".")[1:]
    for part in parents:
        path = f"{path}.{part}"
        try:
            found = importlib.import_module(path)
        except ModuleNotFoundError:
            found = getattr(found, part)
    return getattr(found, last)


def _commands(text: str) -> Iterator[list[str]]:
    """What follows `collab` in the fenced blocks of shell commands, without what is not an argument."""
    for block in re.findall(r"^ *```bash\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            starts = [
                number for number, word in enumerate(words) if word == "collab" and words[number - 1] != "install"
            ]
            for start in starts:
                arguments: list[str] = []
                for word in words[start + 1 :]:
                    if word in ("&&", "|", ">", "}"):
                        break
                    if not word.startswith("${"):
                        arguments.append(word)
                yield arguments


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def _imported(file: Path) -> set[str]:
    """The packages of collab that a file imports from."""
    found = set()
    package = file.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            names = [(*base, *node.module.split("."))] if node.module else [(*base, name.name) for name in node.names]
            found |= {name[1] for name in names if len(name) > 1}
    return found
