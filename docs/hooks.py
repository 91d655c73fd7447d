"""What MkDocs needs for files outside docs/: the figures that the benchmarks draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_RESULTS = "benchmarks/results/"


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the benchmarks' figures to the site."""
    root = Path(config.config_file_path).parent
    for figure in sorted((root / _RESULTS).glob("*.png")):
        files.append(File.generated(config, f"{_RESULTS}{figure.name}", abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Has a page's links to them, which are right in the repository, lead to where they are on the site."""
    return markdown.replace(f"](../{_RESULTS}", f"]({_RESULTS}")
