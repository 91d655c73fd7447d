"""Bad input, generated: every file of a checkpoint × every damage × every command that reads it, and the like.

`CASES` is what comes of it. A case is cheap to list: nothing is made before it is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import damage
from damage import (
    BROKEN_JSON,
    INDEXES,
    JSON_OF_ANOTHER_TYPE,
    ODD_INDEXES,
    PICKLES,
    TENSORS,
    WEIGHT_FILE,
    WEIGHTS,
    drops,
    sets,
)

from collab.cli import main

_BATCH = ("--batch-size", "4", "--steps", "1", "--evaluations", "1", "--samples", "12")
LINES: dict[str, tuple[str, ...]] = {
    "inspect": ("{model}",),
    "plan": ("{model}", "--calibration", "{text}", "--calibration-samples", "8", "--params", "0.5"),
    "heads": ("{model}", "--data", "{text}", "--samples", "4", "--ablation-samples", "4"),
    "convert": (
        *("{model}", "{out}", "--rank", "8", "--calibration", "{text}", "--calibration-samples", "8"),
        *("--refine", "none", "--no-compare", "--no-speed"),
    ),
    "compress": (
        *("{model}", "{out}", "--flops", "0.7", "--calibration", "{text}", "--calibration-samples", "8"),
        *("--heal-steps", "2", "--no-speed"),
    ),
    "heal": ("{model}", "{out}", "--data", "{text}", *_BATCH),
    "finetune": (
        *("{model}", "{out}", "--task", "classification", "--train", "{labelled}", "--eval", "{labelled}"),
        *_BATCH,
    ),
    "prune": ("{model}", "{out}", "--per-layer", "2", "--data", "{text}", "--samples", "4", "--no-speed"),
    "evaluate": (
        *("{model}", "--data", "{labelled}", "--task", "classification", "--samples", "4"),
        *("--draws", "2", "--rounds", "1"),
    ),
    "expand": ("{model}", "{out}", "--allow-error", "1"),
    "bench": ("{model}", "--no-memory", "--batch-size", "1", "--length", "4", "--rounds", "1"),
    "export": ("{model}", "{out}", "--format", "onnx"),
}
"""A command line for each command that is quick and succeeds on undamaged input."""

PLACES = {"model": "./model", "out": "./out", "text": "./text.txt", "labelled": "./labelled.tsv"}
CONVERTED_ONLY, NATIVE_ONLY = ("heal", "expand"), ("convert", "compress", "plan")
WRITING = tuple(name for name, line in LINES.items() if "{out}" in line)
READING_WEIGHTS = tuple(name for name in LINES if name != "inspect")
READING_TOKENIZER = tuple(name for name in LINES if name not in ("inspect", "bench"))

NUMBERS = {
    "int": ("-1", "0", str(2**63), "9" * 30, "1.5", "", "x", "nan", "٣x"),
    "float": ("-1", "0", "nan", "inf", "-inf", "1e400", "", "x", "0x10"),
}
FAST = 2
"""How many cases of a kind are always run, or up to twice as many."""

NEVER_NUMBERS = {"", "x", "nan", "inf", "-inf", "1e400", "٣x", "0x10", "9" * 30, str(2**63)}


@dataclass(frozen=True)
class Case:
    """Bad input for one command.

    Attributes:
        command: its name.
        kind: what is bad.
        name: how it is bad.
        base: checkpoint to start from: ``native``, ``converted`` or ``image``.
        line: arguments of the command.
        prepare: damages the folder in which the command will run.
        refused: whether the command has to refuse it; else it may also succeed.
        fast: whether it is among those that are always run.
    """

    command: str
    kind: str
    name: str
    base: str
    line: tuple[str, ...]
    prepare: Callable[[Path], object]
    refused: bool
    fast: bool = False

    @property
    def id(self) -> str:
        """A name for reports and ``-k``."""
        return f"{self.command}: {self.kind}: {self.name}".encode("unicode_escape").decode()


def base_of(command: str) -> str:
    """The checkpoint that a command is run on where either would do."""
    return "converted" if command in CONVERTED_ONLY else "native"


def line_of(command: str, **places: str) -> tuple[str, ...]:
    """The command line, with some places changed."""
    return (command, *(part.format(**(PLACES | places)) for part in LINES[command]))


def _nothing(folder: Path) -> None:
    """No damage to files."""


def _spread(cases: Iterable[Case]) -> Iterator[Case]:
    """Marks as fast some cases of each kind, spread over its names and, in turn, over the commands.

    Exports are not among them, because tracing takes long.
    """
    by_kind: dict[str, dict[str, list[Case]]] = {}
    for case in cases:
        by_kind.setdefault(case.kind, {}).setdefault(case.name, []).append(case)
    for by_name in by_kind.values():
        step = max(1, len(by_name) // FAST)
        for number, several in enumerate(by_name.values()):
            able = [case for case in several if case.command != "export"] or several
            chosen = able[number // step % len(able)] if number % step == 0 else None
            for case in several:
                yield case if case is not chosen else replace(case, fast=True)


def in_file(
    kind: str,
    file: str,
    damages: Mapping[str, damage.Damage],
    commands: Iterable[str],
    refused: bool = True,
    base: str | None = None,
    more: tuple[str, ...] = (),
) -> Iterator[Case]:
    """Every damage to a file of the model × every command."""
    for name, change in damages.items():
        for command in commands:
            yield Case(
                command,
                kind,
                name,
                base or base_of(command),
                (*line_of(command), *more),
                lambda folder, change=change: change(folder / "model" / file),  # type: ignore[misc]
                refused,
            )


def _values(values: Mapping[str, Iterable[Any]], inside: tuple[str | int, ...] = ()) -> dict[str, damage.Damage]:
    """Setting each key to each value."""
    return {
        f"{key} {json.dumps(value)[:40]}": sets(*inside, key, to=value)
        for key, several in values.items()
        for value in several
    }


SIZES = {
    "num_attention_heads": (0, -4, 3, "4", 4.5, None, [4], 10**30),
    "hidden_size": (0, -32, "32", None, 1.5, 10**12),
    "vocab_size": (0, -1, "31", None),
    "num_hidden_layers": (0, -1, "2", None, 10**9, 1.5),
    "intermediate_size": (0, -1, "a"),
    "max_position_embeddings": (0, -1, "x"),
    "hidden_act": ("nope", 3, []),
    "model_type": ("", None, 3, [], "../x", "bert\0", "gpt2"),
    "architectures": (["BertForX"], [3], {"a": 1}, [None], 3, ["os.system"], ["pipeline"]),
    "dtype": ("float99", [], "os"),
    "layer_norm_eps": ("a", None, []),
    "hidden_dropout_prob": ("a", 2, -1, []),
}
"""Values of a config that no command can work with."""

UNLIKE_WEIGHTS = {
    "vocab_size": (10**10,),
    "intermediate_size": (10**11, 49),
    "max_position_embeddings": (10**10, 41),
    "hidden_size": (64,),
    "dtype": (3, "int8"),
}
"""Values that do not belong to the weights, so every command refuses them that reads these."""

ODDITIES = {
    "architectures": ([], None, ["PreTrainedModel"]),
    "num_hidden_layers": (3, 9999),
    "type_vocab_size": (0, -1, "a", None),
    "pad_token_id": (-1, 10**6, "a", []),
    "id2label": ([], 3, {"a": "b"}, None, {}, {"0": 3}),
    "label2id": ([], 3, None),
    "auto_map": (3, {}, {"AutoConfig": 3}, {"AutoModel": "../evil.Evil"}, {"AutoTokenizer": [None, 3]}),
    "tie_word_embeddings": ("x", 3),
    "problem_type": (3, "dancing"),
    "quantization_config": (3, {}, {"quant_method": "bitsandbytes"}, {"quant_method": "nope"}),
    "_attn_implementation": ("nope", 3),
    "attn_implementation": ("nope", 3),
    "is_decoder": (True, "x"),
    "add_cross_attention": (True,),
    "chunk_size_feed_forward": (-1, "a"),
    "position_embedding_type": (3, None),
    "transformers_version": (3, None),
    "initializer_range": ("a", -1),
    "layer_norm_eps": (-1, 1e308),
    "attention_probs_dropout_prob": (None, "a"),
    "output_attentions": ("x", 3),
    "return_dict": (False, 3),
    "num_labels": (0, -1, "a"),
    "tokenizer_class": (3, "Nope", "../x"),
    "max_position_embeddings": (4,),
}
"""Values that may do no harm, and must be refused where they do."""

_ENTRY = {"form": "cp", "rank": 8, "content": "exact"}
SPECS: dict[str, Any] = {
    json.dumps(value)[:60]: value
    for value in (
        3,
        "x",
        {},
        [],
        [3],
        [None],
        [{}],
        [[]],
        [{"form": "cp"}],
        [{"rank": 8}],
        [_ENTRY | {"form": 3}],
        [_ENTRY | {"form": "svd"}],
        [_ENTRY | {"form": []}],
        [_ENTRY | {"rank": 0}],
        [_ENTRY | {"rank": -1}],
        [_ENTRY | {"rank": "8"}],
        [_ENTRY | {"rank": 8.5}],
        [_ENTRY | {"rank": None}],
        [_ENTRY | {"rank": 33}],
        [_ENTRY | {"rank": 10**12}],
        [_ENTRY | {"head_ranks": [2, 2, 2, 2]}],
        [_ENTRY | {"head_ranks": 3}],
        [{"form": "concat", "rank": 8, "head_ranks": "abcd"}],
        [{"form": "concat", "rank": 8, "head_ranks": [8]}],
        [{"form": "concat", "rank": 8, "head_ranks": [9, -1, 0, 0]}],
        [{"form": "concat", "rank": 8, "head_ranks": [1.5, 1.5, 2, 3]}],
        [_ENTRY | {"heads": [9]}],
        [_ENTRY | {"heads": [-1]}],
        [_ENTRY | {"heads": "01"}],
        [_ENTRY | {"heads": [0, 0]}],
        [_ENTRY | {"heads": [0.5]}],
        [_ENTRY | {"heads": 3}],
        [_ENTRY | {"heads": []}],
        [_ENTRY | {"content": 3}],
        [_ENTRY | {"content": "melted"}],
        [_ENTRY | {"colour": "red"}],
        [_ENTRY] * 3,
    )
}

UNLIKE_LAYERS = [[_ENTRY | {"content": "folded"}], [_ENTRY | {"form": "tucker"}], [_ENTRY | {"rank": 9}]]
"""Layers that do not belong to the weights."""

TOKENIZER_JSON = {
    "model": (None, 3, {}, [], {"type": "Nope"}),
    "added_tokens": (3, [3], [{}], None),
    "normalizer": (3, {"type": "Nope"}),
    "pre_tokenizer": (3,),
    "post_processor": ({"type": "BertProcessing"}, 3),
    "version": (3, None),
}
TOKENIZER_CONFIG = {
    "tokenizer_class": (3, "Nope", [], "../x", "os.system"),
    "model_max_length": ("many", -1, 0, [], 10**400),
    "auto_map": (3, {"AutoTokenizer": ["evil.Evil", None]}, {"AutoTokenizer": 3}),
    "added_tokens_decoder": (3, {"a": 3}, {"0": {}}),
    "pad_token": (3, [], {"a": 1}),
    "unk_token": (None, 3),
    "chat_template": (3, "{% for %}"),
    "extra_special_tokens": (3, "a"),
    "padding_side": ("up", 3),
}

REPORT = {
    "history": (3, [3], {}, "x", [{}], None),
    "original_history": (3, [3], "x"),
    "source": (3, [], {}, "", "../../nowhere", "\0", "~nouser/x", None),
    "revision": (3, [], "main"),
    "layers": (3, [3], [{}], "x", {}, None),
    "parameters": (3, {}, None, {"query_key": 3}),
    "settings": (3, [], "x"),
    "command": (3, [], {}),
    "notes": (3,),
}
CARD = {
    name: damage.writes(content)
    for name, content in {
        "not UTF-8": b"---\nlicense: mit\n---\n\xff\xfe",
        "not YAML": b"---\nlicense: [\n---\n# A\n",
        "a list": b"---\n- a\n---\n# A\n",
        "a number": b"---\n3\n---\n# A\n",
        "tags of another type": b"---\ntags: 3\n---\n# A\n",
        "a tag of another type": b"---\ntags:\n- {a: b}\n---\n# A\n",
        "a license of another type": b"---\nlicense: {a: b}\n---\n# A\n",
        "results of another type": b"---\nmodel-index: 3\n---\n# A\n",
        "results without values": b"---\nmodel-index:\n- name: a\n  results:\n  - task: 3\n---\n# A\n",
        "a base model of another type": b"---\nbase_model: [1, {a: b}]\n---\n# A\n",
        "an open header": b"---\nlicense: mit\n",
        "an object": b"---\na: !!python/object/apply:os.system [touch attacked]\n---\n# A\n",
        "anchors that grow": b"---\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a]\ntags: [*b,*b,*b]\n---\n",
    }.items()
}
MODULES = {
    json.dumps(value)[:60]: damage.writes(json.dumps(value).encode())
    for value in (
        [3],
        [{}],
        [{"path": 3}],
        [{"path": None}],
        [{"path": "../outside"}],
        [{"path": "/etc"}],
        [{"path": "a\0b"}],
        [{"path": "x" * 5000}],
        {"path": "1_Pooling"},
        "1_Pooling",
    )
}

OUTPUTS = {
    "empty": "",
    "a NUL": "o\0t",
    "the input": "./model",
    "inside the input": "./model/out",
    "deep inside the input": "./model/a/b/out",
    "inside the input by a link": "./link/out",
    "around the input": ".",
    "the root": "/",
    "a file": "./text.txt",
    "below a file": "./text.txt/out",
    "a folder of others": "./outside",
    "a link to nothing": "./dangling",
    "a link to itself": "./loop",
    "a name too long": "o" * 300,
    "a path too long": "o/" * 3000,
    "in /proc": "/proc/out",
    "a device": "/dev/null",
    "of nobody's home": "~nobody-of-that-name/out",
}
ODD_OUTPUTS = {
    "a space": " ",
    "a new line": "o\nt",
    "no Unicode": "o\udcfft",
    "a dash": "./-",
    "braces": "{{out}}",
    "markup": "[red]",
}
MODELS = {
    "empty": "",
    "a space": " ",
    "this folder": ".",
    "above": "..",
    "the root": "/",
    "a file": "./model/config.json",
    "missing": "./missing",
    "above in a name": "../../x/y",
    "above in an id": "a/../b",
    "dots": "../..",
    "three dots": "...",
    "a NUL": "m\0l",
    "no Unicode": "m\udcffl",
    "a name too long": "m" * 5000,
    "of nobody's home": "~nobody-of-that-name/model",
    "a URL": "https://example.com/model",
    "an option": "--",
    "a new line": "a\nb",
    "a device": "/dev/null",
    "a link to itself": "./loop",
}

_ROWS = [f"a b {letter} d\t{number % 2}" for number, letter in enumerate("abcdefghijkl")]
LABELLED = "\n".join(["sentence\tlabel", *_ROWS]) + "\n"
TEXT = "\n".join(row.partition("\t")[0] for row in _ROWS) + "\n"

DATA: dict[str, tuple[str, bytes]] = {
    "no such file": ("missing.tsv", b""),
    "no suffix": ("rows", LABELLED.encode()),
    "another suffix": ("rows.xml", b"<a/>"),
    "empty tsv": ("rows.tsv", b""),
    "empty csv": ("rows.csv", b""),
    "empty jsonl": ("rows.jsonl", b""),
    "empty json": ("rows.json", b""),
    "empty parquet": ("rows.parquet", b""),
    "only a header": ("rows.tsv", b"sentence\tlabel\n"),
    "only new lines": ("rows.csv", b"\n\n\n"),
    "binary tsv": ("rows.tsv", bytes(range(256)) * 20),
    "binary csv": ("rows.csv", bytes(range(256)) * 20),
    "binary parquet": ("rows.parquet", bytes(range(256)) * 20),
    "binary jsonl": ("rows.jsonl", bytes(range(256)) * 20),
    "half a parquet": ("rows.parquet", b"PAR1" + bytes(100)),
    "NULs": ("rows.tsv", b"sentence\tlabel\n" + bytes(100)),
    "not UTF-8": ("rows.tsv", LABELLED.encode() + b"caf\xe9\t1\n"),
    "UTF-16": ("rows.tsv", LABELLED.encode("utf-16")),
    "ragged": ("rows.csv", b"sentence,label\na,1,2,3\nb\n"),
    "an open quote": ("rows.csv", b'sentence,label\n"a,1\nb,0\n' * 5),
    "a huge field": ("rows.csv", b"sentence,label\n" + b"a" * 200_000 + b",1\n"),
    "the same column twice": ("rows.csv", b"sentence,sentence\na,b\nc,d\n"),
    "JSON of a number": ("rows.json", b"3"),
    "JSON of numbers": ("rows.jsonl", b"1\n2\n3\n"),
    "JSON of lists": ("rows.jsonl", b"[1]\n[2]\n"),
    "rows of other types": ("rows.jsonl", b'{"sentence": 3, "label": 1}\n{"sentence": ["a"], "label": 0}\n'),
    "nested labels": ("rows.jsonl", b'{"sentence": "a", "label": {"b": 1}}\n' * 4),
    "null rows": ("rows.jsonl", b'{"sentence": null, "label": null}\n' * 4),
    "half a row": ("rows.jsonl", b'{"sentence": "a", "label": 1}\n{"sentence": "b", "la'),
    "a folder": ("model", b""),
    "a NUL in the name": ("a\0b.tsv", b""),
    "a name too long": ("d" * 5000, b""),
    "empty name": ("", b""),
    "a pipe": ("pipe.tsv", b""),
    "no Unicode in the name": ("a\udcffb.tsv", b""),
    "a URL": ("https://example.invalid/rows.tsv", b""),
    "a script": ("rows.py", b"open('attacked', 'w')"),
}
TAKING_DATA = {
    "plan": "{text}",
    "heads": "{text}",
    "convert": "{text}",
    "heal": "{text}",
    "prune": "{text}",
    "finetune": "{labelled}",
    "evaluate": "{labelled}",
}

FIGURES = {
    "no suffix": "figure",
    "another suffix": "figure.exe",
    "no such folder": "no/figure.png",
    "a folder": "model",
    "empty": "",
    "a NUL": "a\0b.png",
    "a name too long": "f" * 300 + ".png",
    "in /proc": "/proc/figure.png",
    "below a file": "text.txt/figure.png",
}
OTHER_OPTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "convert": (
        ("--max-shard-size", "0GB"),
        ("--max-shard-size", ""),
        ("--max-shard-size", "1e3"),
        ("--revision", "../x"),
        ("--push-to-hub", "../x"),
        ("--push-to-hub", ""),
        ("--text-column", "9"),
        ("--text-column", "a", "--text-column", "b", "--text-column", "c"),
        ("--calibration-cache", "./model"),
        ("--calibration-cache", "./text.txt"),
        ("--calibration-cache", "./text.txt/cache"),
        ("--calibration-cache", "./model/model.safetensors"),
        ("--rank", "8,"),
        ("--rank", "8," * 100 + "8"),
        ("--rank", "٣x"),
        ("--refine", "2.5"),
    ),
    "plan": (("--params", "1e-300"), ("--calibration-cache", "./text.txt"), ("--text-column", "9")),
    "heads": (
        ("--score", ""),
        ("--sentence", "a"),
        ("--data2", "./missing.txt"),
        ("--task", "poetry"),
        ("--layer", "9"),
    ),
    "heal": (("--teacher", ""), ("--teacher", "./text.txt"), ("--teacher", "./missing"), ("--text-column", "9")),
    "finetune": (
        ("--labels", ","),
        ("--labels", "a,a"),
        ("--labels", "a"),
        ("--metric", "beauty"),
        ("--label-column", "missing"),
        ("--label-column", "sentence"),
        ("--text-column", "missing"),
        ("--teacher", "./missing"),
        ("--prune-heads", "0.5", "--prune-at", "2"),
        ("--prune-heads", "2"),
        ("--task", "glue/nope"),
        ("--task", "regression", "--label-column", "sentence"),
        ("--task", "similarity"),
        ("--task", "token-classification"),
    ),
    "prune": (
        ("--keep", "0:99"),
        ("--keep", "9:0"),
        ("--keep", "0:0,0"),
        ("--keep", "a"),
        ("--keep", ""),
        ("--keep", "0:" + "9" * 30),
        ("--heads", "2"),
        ("--score", "beauty"),
        ("--heal", "./missing.txt"),
    ),
    "evaluate": (
        ("--against", "./missing"),
        ("--against", "./text.txt"),
        ("--task", "poetry"),
        ("--label-column", "missing"),
        ("--task", "token-classification"),
        ("--task", "similarity"),
    ),
    "bench": (("--against", "./missing"), ("--dtype", "int8"), ("--device", "cuda"), ("--length", "9999")),
    "inspect": (("--num-heads", "3"), ("--num-heads", "99"), ("--revision", "v1")),
    "expand": (("--revision", "v1"),),
    "export": (("--format", "pickle"), ("--revision", "v1")),
}


def _evil_tokenizer(folder: Path) -> None:
    (folder / "evil.py").write_text("open('attacked', 'w')\nclass Evil:\n    pass\n")
    sets("auto_map", to={"AutoTokenizer": ["evil.Evil", "evil.Evil"]})(folder / "tokenizer_config.json")
    sets("tokenizer_class", to="Evil")(folder / "tokenizer_config.json")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").unlink(missing_ok=True)


def _evil_code(folder: Path) -> None:
    (folder / "evil.py").write_text("open('attacked', 'w')\nclass Evil:\n    pass\n")
    names = ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification", "AutoTokenizer")
    sets("auto_map", to=dict.fromkeys(names, "evil.Evil"))(folder / "config.json")
    drops("tokenizer_class")(folder / "tokenizer_config.json")


def _own_code(folder: Path) -> None:
    """The code in an exported folder is not what collab runs."""
    for file in folder.glob("collab_*.py"):
        file.write_text("open('attacked', 'w')\n")
    _evil_code(folder)


def _links_outside(folder: Path) -> None:
    """A folder of a sentence-transformers module, and carried files, that are links to elsewhere."""
    (folder / "1_Pooling").symlink_to(folder.parent / "outside")
    (folder / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "1_Pooling"}]))


def _file_outside(folder: Path) -> None:
    (folder / "NOTICE").symlink_to(folder.parent / "outside" / "secret.txt")


def _module_outside(folder: Path) -> None:
    (folder / "modules.json").write_text(json.dumps([{"path": "../outside"}, {"path": "a/../../outside"}]))


def _inside_module(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "secret.txt").symlink_to(folder.parent / "outside" / "secret.txt")
    (folder / "modules.json").write_text(json.dumps([{"path": "1_Pooling"}]))


TRUST: dict[str, damage.Damage] = {
    "a tokenizer with code": _evil_tokenizer,
    "a config that names code": _evil_code,
    "changed code of a converted model": _own_code,
    "a module that is a link": _links_outside,
    "a module outside": _module_outside,
    "a link inside a module": _inside_module,
    "a file that is a link": _file_outside,
}


def _all() -> Iterator[Case]:
    every = tuple(LINES)
    both = {**JSON_OF_ANOTHER_TYPE, **BROKEN_JSON}
    yield from in_file("config.json", "config.json", {**both, "an empty object": damage.writes(b"{}")}, every)
    yield from in_file("config value", "config.json", _values(SIZES), every)
    yield from in_file("config and weights", "config.json", _values(UNLIKE_WEIGHTS), READING_WEIGHTS)
    yield from in_file("odd config value", "config.json", _values(ODDITIES), every, refused=False)
    converted = tuple(name for name in every if name not in NATIVE_ONLY)
    specs = {name: sets("collab_layers", to=value) for name, value in SPECS.items()}
    yield from in_file("collab_layers", "config.json", specs, converted, base="converted")
    unlike_weights = {json.dumps(value): sets("collab_layers", to=value) for value in UNLIKE_LAYERS}
    reading_weights = [name for name in converted if name in READING_WEIGHTS]
    yield from in_file("collab_layers", "config.json", unlike_weights, reading_weights, base="converted")

    yield from in_file("tokenizer.json", "tokenizer.json", both, READING_TOKENIZER)
    yield from in_file(
        "tokenizer.json value", "tokenizer.json", _values(TOKENIZER_JSON), READING_TOKENIZER, refused=False
    )
    yield from in_file("tokenizer_config.json", "tokenizer_config.json", both, READING_TOKENIZER)
    yield from in_file(
        "tokenizer_config.json value",
        "tokenizer_config.json",
        _values(TOKENIZER_CONFIG),
        READING_TOKENIZER,
        refused=False,
    )
    few = ("convert", "heads", "expand")
    for file in ("special_tokens_map.json", "added_tokens.json", "generation_config.json", "chat_template.json"):
        yield from in_file(
            file,
            file,
            {
                name: change
                for name, change in both.items()
                if "link" not in name and name not in ("half", "a folder", "a pipe")
            },
            few,
            refused=False,
        )
    yield from in_file(
        "preprocessor_config.json", "preprocessor_config.json", both, ("convert",), base="image", refused=False
    )

    yield from in_file("weight file", WEIGHTS, WEIGHT_FILE, READING_WEIGHTS)
    yield from in_file("tensor", WEIGHTS, TENSORS, READING_WEIGHTS, base="native", refused=False)
    yield from in_file(
        "tensor", WEIGHTS, {f"{name}, to convert": change for name, change in TENSORS.items()}, NATIVE_ONLY
    )
    yield from in_file("pickle", "", PICKLES, READING_WEIGHTS)
    yield from in_file("index", "", INDEXES, READING_WEIGHTS)
    yield from in_file("index", "", ODD_INDEXES, READING_WEIGHTS, refused=False)

    reading = tuple(name for name in every if name not in ("plan", "heads", "bench"))
    readable = {
        name: change
        for name, change in both.items()
        if name not in ("a folder", "a link to nothing", "a pipe", "a link to itself")
    }
    yield from in_file(
        "report",
        "collab_report.json",
        readable,
        (*(name for name in reading if name != "evaluate"),),
        base=None,
        refused=False,
    )
    yield from in_file("report", "collab_report.json", readable, ("evaluate",), more=("--record",), base="converted")
    others = tuple(name for name in converted if name != "evaluate")
    yield from in_file("report value", "collab_report.json", _values(REPORT), others, base="converted", refused=False)
    yield from in_file(
        "report value",
        "collab_report.json",
        _values(REPORT),
        ("evaluate",),
        base="converted",
        refused=False,
        more=("--record",),
    )
    yield from in_file("card", "README.md", CARD, ("convert", "expand", "prune"), refused=False)
    yield from in_file("card", "README.md", CARD, ("evaluate",), refused=False, base="converted", more=("--record",))
    yield from in_file(
        "modules.json", "modules.json", {**JSON_OF_ANOTHER_TYPE, **MODULES}, ("convert", "expand"), refused=False
    )
    yield from in_file("trust", "", TRUST, every, refused=False)

    for command in every:
        yield from _options(command)
        for name, model in MODELS.items():
            yield Case(command, "model", name, base_of(command), line_of(command, model=model), _nothing, True)
    for command in WRITING:
        for kind, several in ((True, OUTPUTS), (False, ODD_OUTPUTS)):
            for name, output in several.items():
                yield Case(command, "output", name, base_of(command), line_of(command, out=output), _nothing, kind)
    for command, place in TAKING_DATA.items():
        for name, (file, content) in DATA.items():
            yield Case(
                command,
                "data",
                name,
                base_of(command),
                line_of(command, **{place.strip("{}"): file and (file if "://" in file else f"./{file}")}),
                lambda folder, file=file, content=content: content and (folder / file).write_bytes(content),  # type: ignore[misc]
                name in ("no such file", "no suffix", "another suffix", "a script", "a pipe") or "empty" in name,
            )
    for command in ("plan", "bench"):
        for name, figure in FIGURES.items():
            yield Case(
                command, "figure", name, base_of(command), (*line_of(command), "--figure", figure), _nothing, True
            )
    for name in ("text.txt", "model/config.json", "/proc/figures", "a\0b", "f" * 300):
        yield Case("heads", "figures", name, "native", (*line_of("heads"), "--figures", name), _nothing, True)


def _options(command: str) -> Iterator[Case]:
    """Every numeric option × bad values, and others by hand."""
    for option in main.commands[command].params:
        if not isinstance(option, click.Option):
            continue
        if option.name in ("rank", "refine") or option.type is click.INT:
            values = NUMBERS["int"]
        elif option.type.name in ("float", "float range"):
            values = NUMBERS["float"]
        else:
            continue
        flag = max(option.opts, key=len)
        for value in values:
            line = line_of(command)
            if flag in line:
                place = line.index(flag)
                line = (*line[:place], *line[place + 2 :])
            yield Case(
                command,
                "option",
                f"{flag} {value!r}",
                base_of(command),
                (*line, f"{flag}={value}"),
                _nothing,
                value in NEVER_NUMBERS,
            )
    for more in OTHER_OPTIONS.get(command, ()):
        line = tuple(part for part in line_of(command))
        if more[0] in line and more[0] != "--length":
            place = line.index(more[0])
            line = (*line[:place], *line[place + 2 :])
        yield Case(command, "option", " ".join(more)[:60], base_of(command), (*line, *more), _nothing, True)


CASES = list(_spread(_all()))
