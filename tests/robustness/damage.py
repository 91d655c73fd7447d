"""Kinds of damage to the files of a checkpoint, each a function that is given the file or the folder."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Damage = Callable[[Path], object]

WEIGHTS = "model.safetensors"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"
VALUE = "bert.encoder.layer.1.attention.self.value.weight"


def writes(content: bytes) -> Damage:
    """Replaces a file's content."""
    return lambda file: file.write_bytes(content)


def cut(part: float) -> Damage:
    """Keeps the first part of a file."""

    def damage(file: Path) -> None:
        content = file.read_bytes() if file.exists() else b"{}"
        file.write_bytes(content[: int(len(content) * part)])

    return damage


def _becomes_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _becomes_link(target: str) -> Damage:
    def damage(file: Path) -> None:
        file.unlink()
        file.symlink_to(target)

    return damage


def _becomes_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


JSON_OF_ANOTHER_TYPE: dict[str, Damage] = {
    name: writes(name.encode()) for name in ("[]", "null", "3", "true", '"text"', "[[1]]", "NaN", '["a", {}]', "-1e999")
}
BROKEN_JSON: dict[str, Damage] = {
    "empty": writes(b""),
    "half": cut(0.5),
    "not UTF-8": writes(b'{"a": "\xff\xfe"}'),
    "UTF-16": writes('{"a": 1}'.encode("utf-16")),
    "zeros": writes(bytes(500)),
    "deep": writes(b"[" * 200_000),
    "a long number": writes(b'{"a": ' + b"9" * 10_000 + b"}"),
    "two values": writes(b"{}{}"),
    "a folder": _becomes_folder,
    "a link to nothing": _becomes_link("nowhere"),
    "a link to itself": lambda file: _becomes_link(file.name)(file),
    "a pipe": _becomes_pipe,
}


def sets(*path: str | int, to: Any) -> Damage:
    """Sets a value inside a JSON file."""

    def damage(file: Path) -> None:
        content = json.loads(file.read_text())
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to
        file.write_text(json.dumps(content))

    return damage


def drops(key: str) -> Damage:
    """Removes a value from a JSON file."""

    def damage(file: Path) -> None:
        content = json.loads(file.read_text())
        content.pop(key, None)
        file.write_text(json.dumps(content))

    return damage


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    """Changes the tensors of a safetensors file."""

    def damage(file: Path) -> None:
        content = load_file(file)
        changed = change(content)
        save_file(changed if isinstance(changed, dict) else content, file, metadata={"format": "pt"})

    return damage


def header(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Changes the header of a safetensors file and leaves its data."""

    def damage(file: Path) -> None:
        content = file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        entries = json.loads(content[8 : 8 + length])
        change(entries)
        text = json.dumps(entries).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])

    return damage


def _tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    return tensors(lambda content: content.update({name: change(content[name])}))


def _fill(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: torch.full_like(tensor, value)


WEIGHT_FILE: dict[str, Damage] = {
    "empty": writes(b""),
    "five bytes": writes(b"\x05\x00\x00\x00\x00"),
    "half": cut(0.5),
    "all but the end": cut(0.99),
    "zeros": writes(bytes(5000)),
    "text": writes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 100\n"),
    "a pickle": writes(pickle.dumps({"a": 1})),
    "a huge header": writes(struct.pack("<Q", 2**62) + b"{}"),
    "a header of another type": writes(struct.pack("<Q", 2) + b"[]"),
    "more than the header says": lambda file: file.write_bytes(file.read_bytes() + bytes(100)),
    "a folder": _becomes_folder,
    "a link to nothing": _becomes_link("nowhere"),
    "an unknown dtype": header(lambda entries: entries[QUERY].update(dtype="F7")),
    "offsets beyond the end": header(lambda entries: entries[QUERY].update(data_offsets=[0, 10**12])),
    "offsets that overlap": header(lambda entries: entries[QUERY].update(data_offsets=[0, 4096])),
    "a negative shape": header(lambda entries: entries[QUERY].update(shape=[-32, 32])),
    "no tensors": tensors(lambda content: {}),
    "no query": tensors(lambda content: content.pop(QUERY) is None),
    "other names": tensors(lambda content: {f"other.{name}": value for name, value in content.items()}),
}
TENSORS: dict[str, Damage] = {
    "NaN": _tensor(QUERY, _fill(float("nan"))),
    "infinite": _tensor(VALUE, _fill(float("inf"))),
    "int8": _tensor(QUERY, lambda tensor: tensor.to(torch.int8)),
    "int64": _tensor(QUERY, lambda tensor: tensor.to(torch.int64)),
    "bool": _tensor(QUERY, lambda tensor: tensor > 0),
    "complex": _tensor(QUERY, lambda tensor: tensor.to(torch.complex64)),
    "all int32": tensors(lambda content: {name: (value * 100).to(torch.int32) for name, value in content.items()}),
    "float8": _tensor(QUERY, lambda tensor: tensor.to(torch.float8_e4m3fn)),
    "transposed": _tensor("bert.encoder.layer.0.intermediate.dense.weight", lambda tensor: tensor.T.contiguous()),
    "flat": _tensor(QUERY, lambda tensor: tensor.flatten()),
    "a number": _tensor(QUERY, lambda tensor: tensor[0, 0].clone()),
    "no rows": _tensor(QUERY, lambda tensor: tensor[:0].clone()),
    "one more row": _tensor(QUERY, lambda tensor: torch.cat([tensor, tensor[:1]])),
}


def pickles(content: object) -> Damage:
    """Replaces the weights of a folder by a pickle."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        torch.save(content, folder / "pytorch_model.bin")

    return damage


class Attack:
    """A pickle of it would create the file `attacked` in the folder where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch attacked",)


def raw_pickle(content: bytes) -> Damage:
    """Replaces the weights of a folder by a file of these bytes."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / "pytorch_model.bin").write_bytes(content)

    return damage


PICKLES: dict[str, Damage] = {
    "acts": pickles({QUERY: Attack()}),
    "acts as a whole": pickles(Attack()),
    "acts, of an old kind": raw_pickle(pickle.dumps(Attack(), protocol=2)),
    "empty": raw_pickle(b""),
    "text": raw_pickle(b"not a pickle"),
    "a list": pickles([1, 2]),
    "numbers for tensors": pickles({QUERY: 3}),
    "a number for a name": pickles({3: torch.ones(2)}),
    "none": pickles(None),
    "a cut archive": lambda folder: (
        pickles({QUERY: torch.ones(32, 32)})(folder),
        cut(0.5)(folder / "pytorch_model.bin"),
    ),
}


def index(content: Any) -> Damage:
    """Adds an index to a folder, whose weights are renamed to `part.safetensors`."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "part.safetensors")
        (folder / f"{WEIGHTS}.index.json").write_text(content if isinstance(content, str) else json.dumps(content))

    return damage


INDEXES: dict[str, Damage] = {
    "not JSON": index("{"),
    "a list": index([]),
    "null": index(None),
    "no map": index({"metadata": {}}),
    "a map of another type": index({"weight_map": []}),
    "an empty map": index({"metadata": {}, "weight_map": {}}),
    "numbers for files": index({"metadata": {}, "weight_map": {QUERY: 3}}),
    "null for a file": index({"metadata": {}, "weight_map": {QUERY: None}}),
    "a list for a file": index({"metadata": {}, "weight_map": {QUERY: ["part.safetensors"]}}),
    "an empty name": index({"metadata": {}, "weight_map": {QUERY: ""}}),
    "a missing file": index({"metadata": {}, "weight_map": {QUERY: "missing.safetensors"}}),
    "a file outside": index({"metadata": {}, "weight_map": {QUERY: "../outside/model.safetensors"}}),
    "an absolute path": index({"metadata": {}, "weight_map": {QUERY: "/etc/hostname"}}),
    "the folder": index({"metadata": {}, "weight_map": {QUERY: "."}}),
    "a file of another kind": index({"metadata": {}, "weight_map": {QUERY: "config.json"}}),
    "a NUL": index({"metadata": {}, "weight_map": {QUERY: "a\0b"}}),
}
ODD_INDEXES: dict[str, Damage] = {
    "a tensor that is not there": index({"metadata": {}, "weight_map": {"bert.other": "part.safetensors"}}),
    "no metadata": index({"weight_map": {QUERY: "part.safetensors"}}),
}
