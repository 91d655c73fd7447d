"""Registers converted models with transformers' Auto classes without importing transformers itself.

Importing `collab.models.families` registers the converted models but takes seconds, which ``--help`` should not take.
So registration waits until transformers is imported for another reason.

This file runs before the command line can handle Ctrl-C, so it imports next to nothing: not even the base classes of
finders and loaders, which would take longer than all else that ``import collab`` does.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # as in typing, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_AWAITED = "transformers"


def register_with_transformers() -> None:
    """Registers converted models now if transformers is imported already, otherwise right after its import."""
    if _AWAITED in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    # If families itself triggered the import of transformers, it registers when its own import completes.
    importlib.import_module("collab.models.families")


class _Finder:
    """Wraps the loader of transformers, once, so that converted models are registered after the import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _AWAITED:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """Runs another loader, then the registration."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register()
