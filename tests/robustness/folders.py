"""The folders that commands run in: tiny checkpoints, rows, links and a pipe; and what is left in them afterwards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
import transformers
from bad_cases import LABELLED, TEXT, base_of, line_of
from safetensors.torch import load_file
from tiny import BERT, BY_TYPE, LETTERS, SPECIAL, save_with_tokenizer, tiny_model

import collab

SECRET = "what the folder outside holds"
_STEPS = ("--steps", "12", "--evaluations", "6")
LONGER = {
    "convert": ("--refine", "20"),
    "convert --heal": ("--heal", "./text.txt", "--heal-steps", "12"),
    "compress": ("--heal-steps", "12"),
    "heal": _STEPS,
    "finetune": _STEPS,
    "prune": (),
    "expand": (),
    "export": (),
}
"""Options with which a command that writes takes long enough to be disturbed at work."""


def longer_line(name: str, out: str = "./out") -> list[str]:
    """The arguments of one of these."""
    return [*line_of(name.split()[0], out=out), *LONGER[name]]


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


def furnish(folder: Path, base: Path) -> Path:
    """Makes what commands run on in a folder, with a copy of a checkpoint; returns the folder."""
    shutil.copytree(base, folder / "model")
    (folder / "text.txt").write_text(TEXT)
    (folder / "labelled.tsv").write_text(LABELLED)
    (folder / "outside").mkdir()
    (folder / "outside" / "secret.txt").write_text(SECRET)
    shutil.copyfile(base.parent / "native" / "model.safetensors", folder / "outside" / "model.safetensors")
    (folder / "link").symlink_to("model")
    (folder / "dangling").symlink_to("nowhere/at/all")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe.tsv")
    return folder


def folder_for(name: str, bases: Path, folder: Path) -> Path:
    """A folder, which may be new, in which a command can run."""
    folder.mkdir(exist_ok=True)
    return furnish(folder, bases / base_of(name.split()[0]))


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


Undisturbed = tuple[dict[str, torch.Tensor], float]
"""The weights that come of a command that nobody disturbed, and the seconds that it takes."""


def weights(output: Path) -> dict[str, torch.Tensor]:
    """The weights of a complete output, which has to load; those of a graph by number."""
    missing = [name for name in (output / "collab_files.txt").read_text().split("\n") if not (output / name).exists()]
    assert not missing
    if not (output / "model.onnx").is_file():
        collab.load(str(output))
        return load_file(output / "model.safetensors")
    import onnx
    from onnx import numpy_helper

    tensors = onnx.load(output / "model.onnx").graph.initializer
    return {
        str(number): torch.from_numpy(numpy_helper.to_array(tensor).copy()) for number, tensor in enumerate(tensors)
    }


def check_nothing_else(before: dict[str, bytes], after: dict[str, bytes], *also: str) -> None:
    """Checks that all is as it was, but for an output, its work folder, and names that begin as `also`."""
    assert all(after.get(name) == content for name, content in before.items()), "the input changed"
    new = {Path(name).parts[0] for name in after if name not in before} - {"out", "out.training"}
    assert all(name.startswith(also) for name in new), new
