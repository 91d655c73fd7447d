"""Benchmarks, which no test runs: what they take from collab and from each other exists."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import collab

FOLDER = Path(__file__).parents[1] / "benchmarks"
NAMES = {file.stem for file in FOLDER.glob("*.py")}


def defined_in(tree: ast.Module) -> set[str]:
    """The names that a module defines or imports, outside functions and classes."""
    names = set()
    for node in ast.walk(ast.Module([each for each in tree.body if not isinstance(each, ast.FunctionDef)], [])):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names | {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}


@functools.cache
def read(name: str) -> ast.Module:
    return ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Modules, and the names that are imported from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def attributes(tree: ast.Module) -> Iterator[list[str]]:
    """What stands behind ``collab``, as in ``collab.checkpoints.convert``."""
    for node in ast.walk(tree):
        names = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and node.id == "collab":
            yield names


def exists(module: str, name: str) -> bool:
    """Whether a module has a name, or a package a module of that name."""
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_is_imported_exists(name: str) -> None:
    for module, what in imported(read(name)):
        if module in NAMES:
            assert what in defined_in(read(module)), f"{module} has no {what}"
        elif module.partition(".")[0] == "collab":
            assert exists(module, what), f"{module} has no {what}"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_is_used_of_collab_exists(name: str) -> None:
    for names in attributes(read(name)):
        owner: object = collab
        for attribute in names:
            if not isinstance(owner, ModuleType | type):
                break
            assert hasattr(owner, attribute) or attribute in getattr(owner, "__dataclass_fields__", {}), names
            owner = getattr(owner, attribute, None)
