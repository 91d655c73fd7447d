"""What healing gives back: conversions of the demo checkpoint, healed without labels, judged on STS-B dev.

Every row is one run of what `collab convert --rank R --heal TEXT` does, on STS-B train sentences, WikiText sentences,
or random vocabulary: Spearman correlation ×100 and cosine to the original's embeddings before and after, and seconds of
the whole command.

    python benchmarks/healing.py            # everything
    python benchmarks/healing.py --budgets  # only refinement and healing against healing alone, at equal CPU time

Conversions of the first kind are not refined, so that what healing gives back is seen alone. For the second, cp at
R = 64 is converted with refinement and without, and then healed for as many steps as a number of CPU seconds allows,
refinement and the search for a learning rate included.

Writes results/healing.json and .md. Rows are kept as they finish, and a run that was stopped goes on. About an hour on
two cores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from common import demo_folder, kept, machine, markdown, sentences_of, wikitext_lines, write
from judge import Judge, stsb_sentences

import collab

SETTINGS: list[dict[str, Any]] = [
    {"form": "cp", "rank": rank, "data": data} for data in ("sentences", "wikitext", "synthetic") for rank in (64, 128)
]
BUDGETS: list[dict[str, Any]] = [
    {"budget": budget, "refine": refine} for budget in (100, 400) for refine in ("none", "auto")
]
SETTINGS += [{"form": form, "rank": rank, "data": "sentences"} for form in ("concat", "tucker") for rank in (64, 128)]


def wikitext_sentences() -> list[str]:
    """Sentences of WikiText-2."""
    sentences = (sentence for line in wikitext_lines() for sentence in sentences_of(line))
    return [sentence for sentence in sentences if len(sentence.split()) > 4 and "=" not in sentence]


def row(setting: dict[str, Any], judge: Judge, folder: Path) -> dict[str, Any]:
    """One conversion, healed."""
    data: Any = "synthetic"
    if setting["data"] != "synthetic":
        text = stsb_sentences() if setting["data"] == "sentences" else wikitext_sentences()
        (folder / "text.txt").write_text("\n".join(text))
        data = collab.DataSource(str(folder / "text.txt"))
    config = collab.ConversionConfig(rank=setting["rank"], form=setting["form"], refine="none")
    measured: dict[str, Any] = {}
    for name, heal in (("before", None), ("after", collab.HealRequest(data))):
        start = time.perf_counter()
        made = collab.checkpoints.convert(
            str(demo_folder()),
            folder / name,
            config,
            calibration=collab.CalibrationRequest(data),
            heal=heal,
            save_options=collab.SaveOptions(overwrite=True),
        )
        measured[name] = judge.measure(folder / name) | {"seconds": time.perf_counter() - start}
    conversion, healing = made.step(collab.Conversion), made.step(collab.Healing)
    assert conversion is not None
    assert healing is not None
    loss = {"before": healing.before["loss"], "after": healing.after["loss"]}
    rate = healing.settings["run"]["learning_rate"]
    learnt = {"steps": healing.steps, "learning_rate": rate, "loss": loss}
    return setting | measured | {"query_key_ratio": conversion.query_key.ratio} | learnt


class Budget:
    """Conversions of the demo checkpoint at R = 64, refined or not, and healed for a number of CPU seconds."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.text = stsb_sentences()
        self.checkpoint = collab.load(str(demo_folder()))
        model, tokenizer = self.checkpoint.model, self.checkpoint.tokenizer
        self.calibration = collab.calibrate(collab.Checkpoint(model, tokenizer), self.text)

    def row(self, setting: dict[str, Any]) -> dict[str, Any]:
        """One conversion."""
        trial = self.convert()
        first, second = (self.heal(trial, steps) for steps in (5, 15))
        each, fixed = (second - first) / 10, first - (second - first) / 2  # CPU seconds of a step, and of the rest
        conversion, refining = self.convert(), 0.0
        if setting["refine"] == "auto":
            start = time.process_time()
            rows, held_out = self.calibration.train, self.calibration.held_out
            collab.refine(conversion.model, self.checkpoint.model, rows, held_out)
            refining = time.process_time() - start
        before = self.measure(conversion)
        steps = max(1, round((setting["budget"] - refining - fixed) / each))
        healing = self.heal(conversion, steps)
        return setting | {
            "refine_cpu_seconds": refining,
            "steps": steps,
            "cpu_seconds": refining + healing,
            "before": before,
            "after": self.measure(conversion),
        }

    def convert(self) -> collab.Checkpoint:
        """A conversion that is neither refined nor healed."""
        config = collab.ConversionConfig(rank=64, refine="none", compare=False)
        return collab.convert(self.checkpoint, config, calibration=self.calibration)

    def heal(self, conversion: collab.Checkpoint, steps: int) -> float:
        """CPU seconds of healing."""
        start = time.process_time()
        options = collab.HealOptions(run=collab.RunOptions(steps=steps))
        collab.heal(conversion, self.checkpoint, self.text, options=options)
        return time.process_time() - start

    def measure(self, conversion: collab.Checkpoint) -> dict[str, float]:
        """Its quality, as a folder."""
        with tempfile.TemporaryDirectory() as folder:
            collab.save(conversion, Path(folder) / "out")
            return self.judge.measure(Path(folder) / "out")


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budgets", action="store_true")
    only_budgets = parser.parse_args().budgets
    transformers.logging.disable_progress_bar()
    result = kept("healing")
    judge = Judge()
    result |= {
        "original_spearman": judge.spearman,
        "rows": result.get("rows", []),
        "budgets": result.get("budgets", []),
    }
    for setting in [] if only_budgets else SETTINGS:
        if not _done(setting, result["rows"]):
            with tempfile.TemporaryDirectory() as folder:
                result["rows"].append(row(setting, judge, Path(folder)))
            write("healing", result | {"machine": machine()}, table(result))
    budget = None
    for setting in BUDGETS:
        if not _done(setting, result["budgets"]):
            budget = budget or Budget(judge)
            result["budgets"].append(budget.row(setting))
            write("healing", result | {"machine": machine()}, table(result))


def _done(setting: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    return any(all(done[name] == value for name, value in setting.items()) for done in rows)


def table(result: dict[str, Any]) -> str:
    """Before → after healing."""
    headings = ["form, R", "healed on", "query/key left", "Spearman", "cosine", "relative error", "learning rate"]
    cells = [
        [
            f"{row['form']}, {row['rank']}",
            row["data"],
            f"{row['query_key_ratio']:.3f}",
            " → ".join(f"{row[when]['spearman']:.2f}" for when in ("before", "after")),
            " → ".join(f"{row[when]['cosine']:.4f}" for when in ("before", "after")),
            " → ".join(f"{row['loss'][when]:.4f}" for when in ("before", "after")),
            f"{row['learning_rate']:.1e}",
        ]
        for row in result["rows"]
    ]
    parts = [f"Original: Spearman {result['original_spearman']:.2f}.", markdown(headings, cells)]
    if result["budgets"]:
        headings = ["cp, R = 64", "CPU s, of which refinement", "steps of healing", "Spearman", "cosine"]
        cells = [
            [
                f"{row['budget']} CPU seconds, {'refined and healed' if row['refine'] == 'auto' else 'healed alone'}",
                f"{row['cpu_seconds']:.0f}, {row['refine_cpu_seconds']:.0f}",
                str(row["steps"]),
                " → ".join(f"{row[when]['spearman']:.2f}" for when in ("before", "after")),
                " → ".join(f"{row[when]['cosine']:.4f}" for when in ("before", "after")),
            ]
            for row in result["budgets"]
        ]
        parts.append(markdown(headings, cells))
    return "\n\n".join(parts)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
