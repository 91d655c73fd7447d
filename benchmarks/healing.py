"""What healing gives back: conversions of the demo checkpoint, healed without labels, judged on STS-B dev.

Every row is one run of what `collab convert --rank R --heal TEXT` does, on STS-B train sentences, WikiText sentences,
or random vocabulary: Spearman correlation ×100 and cosine to the original's embeddings before and after, and seconds of
the whole command.

    python benchmarks/healing.py

Writes results/healing.json and .md. Rows are kept as they finish, and a run that was stopped goes on. About 40 minutes
on two cores.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from common import demo_folder, kept, machine, markdown, shared_data, write
from judge import Judge, stsb_sentences

import collab

SETTINGS: list[dict[str, Any]] = [
    {"form": "cp", "rank": rank, "data": data} for data in ("sentences", "wikitext", "synthetic") for rank in (64, 128)
]
SETTINGS += [{"form": form, "rank": rank, "data": "sentences"} for form in ("concat", "tucker") for rank in (64, 128)]


def wikitext_sentences() -> list[str]:
    """Sentences of WikiText-2."""
    text = (shared_data() / "data" / "wikitext2" / "wiki.valid.tokens").read_text(encoding="utf-8")
    sentences = (sentence.strip() for line in text.splitlines() for sentence in re.split(r"(?<= [.!?]) ", line))
    return [sentence for sentence in sentences if len(sentence.split()) > 4 and "=" not in sentence]


def row(setting: dict[str, Any], judge: Judge, folder: Path) -> dict[str, Any]:
    """One conversion, healed."""
    data: Any = "synthetic"
    if setting["data"] != "synthetic":
        text = stsb_sentences() if setting["data"] == "sentences" else wikitext_sentences()
        (folder / "text.txt").write_text("\n".join(text))
        data = collab.DataSource(str(folder / "text.txt"))
    config = collab.ConversionConfig(rank=setting["rank"], form=setting["form"])
    measured: dict[str, Any] = {}
    for name, heal in (("before", None), ("after", collab.HealRequest(data))):
        start = time.perf_counter()
        report = collab.checkpoints.convert(
            str(demo_folder()),
            folder / name,
            config,
            calibration=collab.CalibrationRequest(data),
            heal=heal,
            save_options=collab.SaveOptions(overwrite=True),
        )
        measured[name] = judge.measure(folder / name) | {"seconds": time.perf_counter() - start}
    step = report.history[0]
    loss = {when: step[when]["loss"] for when in ("before", "after")}
    rate = step["settings"]["run"]["learning_rate"]
    learnt = {"query_key_ratio": report.query_key.ratio, "steps": step["steps"], "learning_rate": rate, "loss": loss}
    return setting | measured | learnt


def main() -> None:
    """Runs what is missing."""
    transformers.logging.disable_progress_bar()
    done = kept("healing").get("rows", [])
    judge = Judge()
    for setting in SETTINGS:
        if not any(all(row_done[name] == value for name, value in setting.items()) for row_done in done):
            with tempfile.TemporaryDirectory() as folder:
                done.append(row(setting, judge, Path(folder)))
            print(done[-1], flush=True)
            result = {"machine": machine(), "original_spearman": judge.spearman, "rows": done}
            write("healing", result, table(result))


def table(result: dict[str, Any]) -> str:
    """Before and after."""
    headings = ["form, R", "healed on", "query/key left", "Spearman before", "after", "cosine before", "after"]
    headings += ["relative error before", "after", "learning rate", "seconds"]
    cells = [
        [
            f"{row['form']}, {row['rank']}",
            row["data"],
            f"{row['query_key_ratio']:.3f}",
            *(f"{row[when]['spearman']:.2f}" for when in ("before", "after")),
            *(f"{row[when]['cosine']:.4f}" for when in ("before", "after")),
            *(f"{row['loss'][when]:.4f}" for when in ("before", "after")),
            f"{row['learning_rate']:.1e}",
            f"{row['after']['seconds']:.0f}",
        ]
        for row in result["rows"]
    ]
    return f"Original: Spearman {result['original_spearman']:.2f}.\n\n{markdown(headings, cells)}"


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
