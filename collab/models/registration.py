"""Registers converted models with transformers' Auto classes without importing transformers itself.

Importing `collab.models.families` registers the converted models but takes seconds, which ``--help`` should not take.
So registration waits until transformers is imported for another reason.

Nothing in transformers (5.23 was searched) does that: it looks for no entry points or environment variables of other
packages, and its lazy tables of names lead only to its own modules. ``AutoConfig.register`` takes classes and imports
torch first, 1.7 s where ``collab --help`` takes 0.1 s; ``auto_map`` in a config needs ``trust_remote_code`` instead.

This file runs before the command line can handle Ctrl-C, so it imports next to nothing: not even the base classes of
finders and loaders, which would take longer than all else that ``import collab`` does.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # as in typing, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

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
    """Has the loader of transformers register the converted models after the import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _AWAITED:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:  # until now: some only ask whether transformers is there
                    sys.meta_path.remove(self)
                _register()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
