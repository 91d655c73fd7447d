"""What MkDocs needs for files outside docs/: the tables that the benchmarks write, and the figures that they draw."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_RESULTS = "benchmarks/results/"
_TABLES = re.compile(rf"^\[[^]]*\]\(\.\./{_RESULTS}([\w-]+\.md)\)$", re.MULTILINE)
_HEADING = re.compile(r"^#+ ", re.MULTILINE)


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the benchmarks' figures to the site."""
    for figure in sorted((_root(config) / _RESULTS).glob("*.png")):
        files.append(File.generated(config, f"{_RESULTS}{figure.name}", abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Shows the tables where a line is only a link to them, and has links to figures lead to where they are."""

    def tables(link: re.Match[str]) -> str:
        text = (_root(config) / _RESULTS / link[1]).read_text(encoding="utf-8")
        return _HEADING.sub("#### ", text)  # below the page's own headings

    return _TABLES.sub(tables, markdown).replace(f"](../{_RESULTS}", f"]({_RESULTS}")


def _root(config: Any) -> Path:
    return Path(config.config_file_path).parent
