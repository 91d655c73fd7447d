"""Writes tiny checkpoints with the installed version of collab, one for every kind of step, for later versions to read.

    PYTHONPATH=CHECKOUT python tests/exported/make.py tests/exported/NAME

NAME says which version it is; `EXPORTED` in tests/test_before.py names the one that is loaded. The Python files, which
are the same in every converted checkpoint, are kept once, in NAME/code. `outputs.json` has what each model computes for the texts in it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz")
TEXTS = ["h e a d s c o l l a b o r a t e", "n o"]
ORIGINALS = {
    "classifier": (transformers.BertForSequenceClassification, 2),
    "language-model": (transformers.BertForMaskedLM, 2),
    "embedder": (transformers.BertModel, 3),
}
CALIBRATED = ("--calibration", "text.txt", "--refine", "20")
TRAINED = ("--batch-size", "8", "--evaluations", "2", "--steps")
LABELLED = (
    *("--task", "classification", "--train", "rows.tsv", "--eval", "rows.tsv"),
    *("--learning-rate", "0.02", *TRAINED, "120"),
)
COMMANDS = {
    "converted-cp": ("convert", "classifier", "--rank", "4", *CALIBRATED),
    "converted-tucker": (
        *("convert", "language-model", "--params", "0.9", "--form", "tucker", "--content", "folded"),
        *CALIBRATED,
    ),
    "converted-and-healed": (
        *("convert", "classifier", "--rank", "8", "--form", "concat", "--calibration", "text.txt", "--refine", "none"),
        *("--heal", "text.txt", "--heal-steps", "10"),
    ),
    "converted-fewer-tokens": ("convert", "embedder", "--rank", "8", *CALIBRATED, "--keep-tokens", "few.txt"),
    "compressed": (
        *("compress", "embedder", "--flops", "0.5", "--drop-layers", "1", "--calibration", "text.txt"),
        *("--heal-steps", "10", "--heal-precision", "float32"),
    ),
    "pruned-original": ("prune", "classifier", "--heads", "0.4", "--data", "text.txt"),
    "converted-after-pruning": ("convert", "pruned-original", "--rank", "0.5", *CALIBRATED),
    "pruned": (
        *("prune", "converted-cp", "--per-layer", "3", "--data", "text.txt", "--steps", "2"),
        *("--heal", "text.txt", "--heal-steps", "10"),
    ),
    "healed": ("heal", "converted-cp", "--data", "text.txt", *TRAINED, "12"),
    "finetuned-original": ("finetune", "classifier", *LABELLED),
    "finetuned": ("finetune", "healed", *LABELLED, "--prune-heads", "0.25"),
    "expanded": ("expand", "converted-and-healed", "--allow-error", "0.9"),
    "graph": ("export", "healed", "--format", "onnx"),
}
"""Arguments of collab, by the name of the folder that each writes; each may read what those before it wrote."""
RECORDED = {"evaluated": "finetuned"}
"""Copies of checkpoints whose evaluation is recorded in them."""


def make_original(name: str) -> None:
    """Writes a random model, its tokenizer, and those of embeddings the files of sentence-transformers."""
    native_class, layers = ORIGINALS[name]
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        max_position_embeddings=24,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=24,
        pad_token_id=0,
    )
    model = native_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:  # large enough for the attention to matter
                parameter.normal_(0, 0.25)
    model.save_pretrained(name)
    folder = Path(name)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    if native_class is transformers.BertModel:
        (folder / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling) + "\n")
        kinds = {"": "Transformer", "1_Pooling": "Pooling"}
        modules = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(kinds.items())
        ]
        (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
        (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20, "do_lower_case": false}\n')


def make_rows() -> None:
    """Writes the rows to calibrate, train and measure on: letters, by their first, and pairs."""
    drawn = random.Random(0)
    rows = [" ".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(3, 12))) for _ in range(64)]
    Path("text.txt").write_text("\n".join(rows) + "\n")
    Path("rows.tsv").write_text("\n".join(["sentence\tlabel", *(f"{row}\t{row < 'n':d}" for row in rows)]) + "\n")
    pairs = [f"{first}\t{second}\t{len({*first} & {*second})}" for first, second in zip(rows, rows[1:], strict=False)]
    Path("pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *pairs]) + "\n")
    Path("few.txt").write_text("\n".join(["a b c d e h l n o r s t", *TEXTS]) + "\n")


def outputs(folder: str) -> dict[str, object]:
    """Input ids and the first output of the two texts, and what the model is made of."""
    inspection = json.loads(collab("inspect", folder, "--json"))
    architecture = json.loads(Path(folder, "config.json").read_text())["architectures"][0]
    auto_class = next(
        name
        for ending, name in (
            ("ForSequenceClassification", "AutoModelForSequenceClassification"),
            ("ForMaskedLM", "AutoModelForMaskedLM"),
            ("Model", "AutoModel"),
        )
        if architecture.endswith(ending)
    )
    model = getattr(transformers, auto_class).from_pretrained(folder)
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs)
    name = next(iter(output))  # logits, or last_hidden_state
    first_rows = output[name][:, :2] if output[name].ndim == 3 else output[name]  # of long outputs the first two places
    return {
        "auto_class": auto_class,
        "input_ids": inputs["input_ids"].tolist(),
        "output": name,
        "values": [[round(value, 6) for value in row] for row in first_rows.flatten(1).tolist()],
        "layers": [{key: layer[key] for key in ("form", "heads", "rank")} for layer in inspection["layers"]],
        "parameters": inspection["parameters"],
    }


def collab(*arguments: str) -> str:
    """Runs a command; returns what it prints."""
    from collab.cli import main

    sys.argv = ["collab", *arguments]  # which the report says
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(list(arguments), prog_name="collab", standalone_mode=False)
    return printed.getvalue()


def main() -> None:
    """Writes everything."""
    target = Path(sys.argv[1]).resolve()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as top:
        os.chdir(top)  # so that reports and cards say paths without folders
        make_rows()
        for name in ORIGINALS:
            make_original(name)
        for name, (command, model, *options) in COMMANDS.items():
            print(name, flush=True)
            collab(command, model, name, *options)
        for name, source in RECORDED.items():
            shutil.copytree(source, name)
            collab("evaluate", name, "--data", "rows.tsv", "--against", "classifier", "--draws", "100", "--record")
        models = [*ORIGINALS, *(name for name in COMMANDS if name != "graph"), *RECORDED]
        kept = {"texts": TEXTS, "checkpoints": {name: outputs(name) for name in models}}
        Path("outputs.json").write_text(json.dumps(kept) + "\n")
        Path("code").mkdir()
        for file in Path().glob("*/collab_*.py"):
            if file.parent.name != "code":
                shared = Path("code", file.name)
                if shared.exists() and shared.read_bytes() != file.read_bytes():
                    raise SystemExit(f"{file} is not the same everywhere.")
                file.rename(shared)
        for graph in Path("graph").glob("*.onnx*"):
            graph.unlink()  # larger than all others together
        Path("few.txt").unlink()
        Path(top).chmod(0o755)
        shutil.copytree(top, target)


if __name__ == "__main__":
    main()
