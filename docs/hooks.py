"""What MkDocs needs for files outside docs/, the benchmarks' tables and figures, and for tables on narrow screens."""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_RESULTS = "benchmarks/results/"
_TABLES = re.compile(rf"^\[[^]]*\]\((?:\.\./)+{_RESULTS}([\w-]+\.md)\)$", re.MULTILINE)
_LINK = re.compile(rf"\]\((?:\.\./)+{_RESULTS}")
_HEADING = re.compile(r"^#+ ", re.MULTILINE)
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_CELL = re.compile(r"<t([dh])\b([^>]*)>(.*?)</t\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the benchmarks' figures to the site."""
    for figure in sorted((_root(config) / _RESULTS).glob("*.png")):
        files.append(File.generated(config, f"{_RESULTS}{figure.name}", abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Shows the tables where a line is only a link to them, and has links to figures lead to where they are."""

    def tables(link: re.Match[str]) -> str:
        text = (_root(config) / _RESULTS / link[1]).read_text(encoding="utf-8")
        return _HEADING.sub("### ", text)  # below the page's own headings

    results = posixpath.relpath(_RESULTS, posixpath.dirname(page.file.src_uri) or ".")
    return _LINK.sub(f"]({results}/", _TABLES.sub(tables, markdown))


def on_page_content(content: str, **_: Any) -> str:
    """Names its column in every cell: on a narrow screen, assets/extra.css shows each row as a list."""

    def label(table: re.Match[str]) -> str:
        headings = [html.unescape(_TAG.sub("", cell[3])).strip() for cell in _CELL.finditer(table[0]) if cell[1] == "h"]
        columns = iter(headings * (table[0].count("<tr") if headings else 0))

        def cell(match: re.Match[str]) -> str:
            if match[1] == "h" or not headings:
                return match[0]
            return f'<td{match[2]} data-label="{html.escape(next(columns))}">{match[3]}</td>'

        return _CELL.sub(cell, table[0])

    return _TABLE.sub(label, content)


def _root(config: Any) -> Path:
    return Path(config.config_file_path).parent
