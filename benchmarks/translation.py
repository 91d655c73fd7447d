"""Collaborative attention in translation: trained from scratch as in the paper, converted, and without some heads.

Multi30k, English to German, with Marian-shaped models of 3 + 3 layers, width 256 and 8 heads, trained with label
smoothing in bfloat16; beam search and sacrebleu on the sets val and test_2017.

1. ``scratch``: key widths of 256 to 16 as narrower heads (concat), collaborative (cp) and tucker: the paper's table;
   and the reference trained longer, with more dropout, to see how far its shape goes.
2. ``converted``: the trained reference at the same widths, calibrated on training pairs: nothing trained, refined,
   healed without labels, and trained again; the control is the reference trained again.
3. ``heads``: every head's importance, BLEU without it and with no other of its layer, and BLEU as heads of one kind of
   attention go, as in Michel et al. (2019).

    python benchmarks/translation.py
    python benchmarks/translation.py --part scratch   # one part; may be given several times
    python benchmarks/translation.py --quick          # two widths and fewer steps: about two hours, by estimate
    python benchmarks/translation.py --rehearse       # all of it, tiny, in about three minutes

Run it twice at the same time, with OMP_NUM_THREADS=1, to use two cores: each process takes what the other is not at.
All of it takes about five hours then.
Writes results/translation.json, .md and .png (or translation-quick, translation-rehearsal). Rows are kept as they
finish, and a run that was stopped goes on, in the middle of a training too. Models and translations are in
benchmarks/work, in a folder of the same name.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import kept, machine, markdown, my_turn, write
from filelock import FileLock, Timeout
from transformers import PreTrainedModel
from translation_heads import Heads, draw, head_tables
from translator import HEADS, JUDGED, Setting, Translator, intervals, load, saved

import collab
from collab.evaluation.translation import ngrams
from collab.models.layers import parameters

FORMS = ("concat", "cp", "tucker")
PARTS = ("scratch", "converted", "heads")
RATE, RATE_AGAIN = 1e-3, 2e-4
DROPOUT = 0.3  # of the reference that is trained longer; .1 of all others

REAL = Setting(
    name="translation",
    rows=None,
    width=256,
    units=8000,
    widths=(256, 128, 64, 32, 16),
    seeds=(0, 1),
    steps=2400,
    longer=9600,
    again=400,
    heal_steps=150,
    refine_steps=150,
    batch_size=64,
    beams=5,
    ablated_rows=256,
)
QUICK = replace(
    REAL, name="translation-quick", widths=(64, 16), steps=800, longer=800, again=100, heal_steps=50, refine_steps=50
)
REHEARSAL = Setting(
    name="translation-rehearsal",
    rows=64,
    width=32,
    units=400,
    widths=(32, 8),
    seeds=(0, 1),
    steps=4,
    longer=8,
    again=2,
    heal_steps=2,
    refine_steps=2,
    batch_size=16,
    beams=2,
    ablated_rows=8,
)


@dataclass(frozen=True)
class Job:
    """One model to train or convert, and to measure.

    Attributes:
        what: ``reference``, ``longer``, ``scratch``, ``control``, ``converted``, ``refined``, ``healed`` or ``tuned``.
        form: of its queries and keys.
        rank: R.
        seed: of its training, and of the reference that it was converted from.
    """

    what: str
    form: str
    rank: int
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.what}-{self.form}-{self.rank}-{self.seed}"


class Bench:
    """The models of one setting, each trained once and kept."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self.setting = translator.setting

    def reference(self, seed: int) -> Job:
        """The native model from scratch."""
        return Job("reference", "native", self.setting.width, seed)

    def control(self, seed: int) -> Job:
        """The reference trained again."""
        return Job("control", "native", self.setting.width, seed)

    def jobs(self, part: str) -> list[Job]:
        """What a part of the benchmark measures, in order.

        At full width the reference is the concat form. Tucker is left out where its cores are larger than what
        narrower projections save, at half of the width and above.
        """
        first, full = self.setting.seeds[0], self.setting.width
        compared = [
            (form, rank)
            for rank in self.setting.widths
            for form in FORMS
            if form != "tucker" or HEADS * rank**2 < 2 * full * (full - rank)
        ]
        found = [self.reference(first)]
        if part == "scratch":
            found += [self.reference(seed) for seed in self.setting.seeds[1:]]
            found.append(Job("longer", "native", full, first))
            found += [Job("scratch", form, rank, first) for form, rank in compared if (form, rank) != ("concat", full)]
        elif part == "converted":
            found.append(self.control(first))
            whats = ("converted", "refined", "healed", "tuned")
            for form, rank in compared:
                found += [Job(what, form, rank, first) for what in (whats if rank < full else whats[:1])]
        return found

    def built(self, job: Job) -> Path:
        """The folder of a job's model, which is made if need be."""
        folder = self.translator.folder / job.name
        folder.mkdir(exist_ok=True)
        with FileLock(folder / "lock"):
            if not (folder / "model").exists():
                model, seconds = self._made(job, folder)
                saved(model, folder / "model", seconds)
                for leftover in ("training", "healing"):
                    shutil.rmtree(folder / leftover, ignore_errors=True)
        return folder

    def _made(self, job: Job, folder: Path) -> tuple[PreTrainedModel, float]:
        """The model of a job, and the CPU seconds that its last step took."""
        setting, translator, work = self.setting, self.translator, folder / "training"
        if job.what == "longer":
            model = translator.native(job.seed, dropout=DROPOUT)
            return model, translator.train(model, work, setting.longer, RATE, job.seed)
        if job.what in ("reference", "scratch"):
            untrained = job.form == "native"
            model = translator.native(job.seed) if untrained else translator.collaborative(job.form, job.rank, job.seed)
            return model, translator.train(model, work, setting.steps, RATE, job.seed)
        if job.what in ("control", "tuned"):
            model = self.model(self.reference(job.seed) if job.what == "control" else replace(job, what="refined"))
            return model, translator.train(model, work, setting.again, RATE_AGAIN, job.seed)
        reference, pairs = self.model(self.reference(job.seed)), translator.pairs("train")
        if job.what == "healed":
            options = collab.HealOptions()
            run = replace(options.run, batch_size=setting.batch_size // 2, precision="bfloat16", seed=job.seed)
            options = replace(options, run=replace(run, steps=setting.heal_steps))
            model = self.model(replace(job, what="refined"))
            start = time.process_time()
            healing = collab.Checkpoint(model, translator.tokenizer)
            collab.heal(healing, reference, pairs, options=options, work=folder / "healing")
            return model, time.process_time() - start
        start = time.process_time()
        calibration = collab.calibrate(collab.Checkpoint(reference, translator.tokenizer), pairs)
        refine = "none" if job.what == "converted" else setting.refine_steps
        config = collab.ConversionConfig(rank=job.rank, form=job.form, refine=refine, compare=False)
        conversion = collab.convert(reference, config, calibration=calibration)
        return conversion.model, time.process_time() - start

    def model(self, job: Job) -> PreTrainedModel:
        """The model of a job."""
        return load(self.built(job) / "model")

    def counted(self, job: Job, split: str) -> np.ndarray:
        """What a model's translations of a set add to BLEU, sentence by sentence; they are kept."""
        file = self.built(job) / f"{split}.json"
        sources, references = zip(*self.translator.pairs(split), strict=True)
        if not file.exists():
            written = self.translator.translate(self.model(job), sources, self.setting.beams)
            file.write_text(json.dumps(written))
        return ngrams(json.loads(file.read_text()), references)

    def row(self, job: Job) -> dict[str, Any]:
        """One model, trained if need be, and measured; see `rivals`."""
        folder, rivals = self.built(job), self.rivals(job)
        numbers = parameters(self.model(job))
        measured: dict[str, Any] = {}
        for split in JUDGED:
            mine = self.counted(job, split)
            measured[split] = intervals(mine) | {
                name: intervals(mine, self.counted(rival, split))["difference"] for name, rival in rivals.items()
            }
        seconds = json.loads((folder / "model" / "seconds.json").read_text())
        return asdict(job) | {"parameters": numbers, "seconds": seconds, "bleu": measured}

    def rivals(self, job: Job) -> dict[str, Job]:
        """What a model is compared with.

        Returns:
            ``difference``: the first reference, or the control if the model was trained on targets again;
            ``less_concat``: the same model with narrower heads, for one whose heads share their dimensions.
        """
        first = self.reference(self.setting.seeds[0])
        rivals = {} if job == first else {"difference": self.control(job.seed) if job.what == "tuned" else first}
        if job.form in ("cp", "tucker") and job.rank < self.setting.width:
            rivals["less_concat"] = replace(job, form="concat")
        return rivals


def label(row: dict[str, Any]) -> str:
    """What a row is, in words."""
    names = {
        "reference": f"reference, seed {row['seed']}",
        "longer": "reference, trained longer",
        "scratch": "from scratch",
        "control": "reference, trained again (control)",
        "converted": "converted, nothing trained",
        "refined": "converted, refined",
        "healed": "refined, healed without labels",
        "tuned": "refined, trained again",
    }
    return names[row["what"]]


def table(result: dict[str, Any]) -> str:
    """A table for each part."""
    parts = []
    full = next((row["parameters"]["query_key"] for row in result["rows"] if row["what"] == "reference"), 0)
    titles = {"scratch": ("longer", "scratch"), "converted": ("control", "converted", "refined", "healed", "tuned")}
    for title, whats in titles.items():
        rows = [row for row in result["rows"] if row["what"] in ("reference", *whats)]
        cells = []
        for row in rows:
            test, val = (row["bleu"][split] for split in JUDGED)
            differences = (test.get(name) for name in ("difference", "less_concat"))
            cells.append(
                [
                    f"{row['form']}, {label(row)}",
                    str(row["rank"]),
                    f"{row['parameters']['query_key'] / full:.3f}",
                    "{value:.1f} ({low:.1f} to {high:.1f})".format(**test),
                    *(
                        "{value:+.1f} ({low:+.1f} to {high:+.1f})".format(**each) if each else ""
                        for each in differences
                    ),
                    f"{val['value']:.1f}",
                    f"{row['seconds']:.0f}" if row["seconds"] else "",
                ]
            )
        headings = ["", "R", "query/key left", "BLEU, test_2017"]
        headings += ["less the reference or control", "less concat of this R", "BLEU, val", "CPU s"]
        parts += [f"### {title}", markdown(headings, cells)]
    return "\n\n".join(parts + head_tables(result["heads"]))


def job_of(row: dict[str, Any]) -> Job:
    """The job that a row is of."""
    return Job(row["what"], row["form"], row["rank"], row["seed"])


class Results:
    """What was measured of one setting: a row for each job, and results of heads by name."""

    def __init__(self, bench: Bench) -> None:
        self.setting = bench.setting
        self._locks = bench.translator.folder / "locks"
        self._locks.mkdir(exist_ok=True)
        self._order = [job for part in PARTS for job in bench.jobs(part)]

    def read(self) -> dict[str, Any]:
        """Read anew every time, because another process may have added to them."""
        return {"rows": [], "heads": {}} | kept(self.setting.name)

    def add(self, name: str, done: Callable[[], bool], measure: Callable[[], dict[str, Any]]) -> None:
        """Measures something and writes it, unless that is done, or another process is at it.

        Args:
            name: what is measured.
            done: whether the results have it.
            measure: gives ``rows`` or ``heads`` to add.
        """
        try:
            with FileLock(self._locks / name, timeout=0):
                if not done():
                    print(name, flush=True)
                    self._write(measure())
        except Timeout:
            print(f"{name}: another process is at it", flush=True)

    def _write(self, measured: dict[str, Any]) -> None:
        with my_turn(self.setting.name):
            result = self.read() | {"machine": machine(), "setting": asdict(self.setting)}
            result["rows"] += measured.get("rows", [])
            result["rows"].sort(key=lambda row: self._order.index(job_of(row)))
            result["heads"] |= measured.get("heads", {})
            write(self.setting.name, result, table(result))
            draw(self.setting.name, result["heads"])


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", dest="setting", const=QUICK)
    size.add_argument("--rehearse", action="store_const", dest="setting", const=REHEARSAL)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    setting = given.setting or REAL
    bench = Bench(Translator(setting))
    results = Results(bench)
    for part in given.part or PARTS:
        for job in bench.jobs(part):
            results.add(
                job.name,
                lambda job=job: any(job_of(row) == job for row in results.read()["rows"]),
                lambda job=job: {"rows": [bench.row(job)]},
            )
        if part == "heads":
            heads = Heads(bench.translator, lambda: bench.model(bench.reference(setting.seeds[0])))
            for name, measure in heads.measurements().items():
                results.add(
                    name,
                    lambda name=name: name in results.read()["heads"],
                    lambda name=name, measure=measure: {"heads": {name: measure()}},
                )


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
