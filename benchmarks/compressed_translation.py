"""Compression of a translator: fewer bytes of its decoder, or less of its encoder, beside dropped decoder layers.

Multi30k, English to German, with the trained Marian-shaped reference of benchmarks/translation.py (3 + 3 layers, width
256). Calibrated and healed on English sentences alone, for which the reference writes the German ones greedily.

- ``bytes``: of what the decoder's layers read to write a token, a fraction is kept (`collab compress --step-bytes`);
- ``arithmetic``: of the FLOPs of all layers, a fraction is kept (`--flops`);
- ``encoder``: the encoder's arithmetic is halved, the decoder stays;
- ``dropped``: one or two layers of the decoder are left out, those that lose least, and the rest is as it was;
- ``heads``: half of all heads are pruned, those of the smallest gradients (`collab prune`).

Each untrained and healed alike. BLEU is sacrebleu's, of greedy search and, for the healed models, of five beams, with
95 % intervals of a paired bootstrap. Graphs for OpenVINO, in float32 and int8 (`collab export`), write the same
sentences by transformers' `generate`.

    python benchmarks/compressed_translation.py                    # all models and their BLEU; the longer reference
    python benchmarks/compressed_translation.py --short            # a reference of fewer steps, and less healing
    python benchmarks/compressed_translation.py --short --speed    # then alone: tokens per second, 80 seconds
    python benchmarks/compressed_translation.py --short --graphs   # graphs and their BLEU; with --speed their speed
    python benchmarks/compressed_translation.py --rehearse         # all of it, tiny

Writes results/compressed-translation.json and .md (or -short, -rehearsal). Rows are kept as they finish, and a run that
was stopped goes on; `--only` divides the work between two processes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import kept, machine, markdown, my_turn, write, writing_speeds
from transformers import PreTrainedModel
from translation import REAL as TRANSLATION
from translation import REHEARSAL as TINY
from translation import Bench, Job
from translator import Setting, Translator, intervals, load, saved

import collab
from collab.data.targets import WRITTEN
from collab.evaluation.translation import ngrams
from collab.graphs.options import ExportOptions, GraphPrecision
from collab.models.inputs import random_sources

SPLIT = "test_2017"
NEW = 64
BEAMS = 5
LENGTH = 16  # tokens of a sentence, in both languages
SPEEDS = {"1 row": 1, "8 rows": 8}


@dataclass(frozen=True)
class Size:
    """How much is done.

    Attributes:
        setting: of the reference and its vocabulary.
        longer: whether the reference is the one that was trained longer.
        calibrated: sentences to calibrate on.
        healed: sentences to heal on.
        steps: of healing, 32 sentences each.
        judged: sentences to translate; None for all.
        rounds: of the measurement of speed.
    """

    setting: Setting
    longer: bool
    calibrated: int
    healed: int
    steps: int
    judged: int | None
    rounds: int

    @property
    def name(self) -> str:
        """Of the results."""
        end = {TRANSLATION.name: "", TINY.name: "-rehearsal"}.get(self.setting.name, "-short")
        return f"compressed-translation{end}"


FULL = Size(TRANSLATION, True, 1024, 16384, 1200, None, 21)
SHORT = Size(replace(TRANSLATION, name="compressed-translation", steps=1500), False, 256, 4096, 200, 500, 21)
REHEARSAL = Size(TINY, False, 16, 32, 2, 8, 1)

WAYS: dict[str, dict[str, Any]] = {
    "bytes .75": {"step_bytes": 0.75, "stacks": ("decoder",)},
    "bytes .5": {"step_bytes": 0.5, "stacks": ("decoder",)},
    "bytes .33": {"step_bytes": 0.33, "stacks": ("decoder",)},
    "arithmetic .75": {"flops": 0.75, "length": LENGTH},
    "arithmetic .5": {"flops": 0.5, "length": LENGTH},
    "arithmetic .33": {"flops": 0.33, "length": LENGTH},
    "encoder halved": {"stacks": ("encoder",), "length": LENGTH},  # its budget follows from the model
    "without 1 decoder layer": {"only": ("layers",), "stacks": ("decoder",), "drop_layers": 1},
    "without 2 decoder layers": {"only": ("layers",), "stacks": ("decoder",), "drop_layers": 2},
    "without half of the heads": {},
}
"""Settings of the compressions, by name. The last is pruned instead, and has none."""


SERVED = ("reference", "bytes .5", "bytes .33")
PRECISIONS: tuple[GraphPrecision, ...] = ("float32", "int8")
"""What becomes graphs, and of what precision. What is compressed was healed."""


class Models:
    """The reference and what is made of it, each once."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.translator = Translator(size.setting)
        bench = Bench(self.translator)
        first = size.setting.seeds[0]
        job = Job("longer", "native", size.setting.width, first) if size.longer else bench.reference(first)
        self.reference = load(bench.built(job) / "model")
        self.folder = self.translator.folder / "compressed"
        self.folder.mkdir(exist_ok=True)
        self._calibration: collab.Calibration | None = None

    def sources(self, count: int) -> list[str]:
        """English sentences of the training set."""
        return [source for source, _ in self.translator.pairs("train")][:count]

    def calibration(self) -> collab.Calibration:
        """On sentences for which the reference writes the translations."""
        if self._calibration is None:
            self._calibration = collab.calibrate(self._checkpoint, self.sources(self.size.calibrated))
        return self._calibration

    @property
    def _checkpoint(self) -> collab.Checkpoint:
        """The reference with its tokenizer."""
        return collab.Checkpoint(self.reference, self.translator.tokenizer)

    def config(self, way: str) -> collab.CompressionConfig:
        """Settings of a way."""
        values = dict(WAYS[way])
        if "drop_layers" in values:
            values["flops"] = 1.0
        if values.get("stacks") == ("encoder",):
            values["flops"] = 1 - 0.5 * self._part_of_encoder()
        return collab.CompressionConfig(**values, healed=True)

    def _part_of_encoder(self) -> float:
        """The part of the layers' FLOPs that is the encoder's: a decoder's layer has a third attention and W_O."""
        width, length = self.reference.config.d_model, LENGTH
        attention = 4 * width**2 * length + 2 * length**2 * width
        feed_forward = 2 * width * self.reference.config.encoder_ffn_dim * length
        encoder, decoder = attention + feed_forward, 2 * attention + feed_forward
        return encoder / (encoder + decoder)

    def model(self, way: str, healed: bool) -> PreTrainedModel:
        """A model, made if need be; its folder holds the CPU seconds that it took."""
        if way == "reference":
            return self.reference
        folder = self.folder / f"{way.replace(' ', '-')}{'-healed' if healed else ''}"
        if not folder.exists():
            calibration = self.calibration() if WAYS[way] and not healed else None  # it serves all
            start = time.process_time()
            if healed:
                model = self._healed(way, folder)
            elif WAYS[way]:
                compression = collab.compress(self.reference, self.config(way), calibration)
                model = compression.model
                (self.folder / f"{folder.name}.json").write_text(json.dumps(compression.report.to_dict()))
            else:
                rows = collab.head_rows(self._checkpoint, self.sources(self.size.calibrated), None)
                model = collab.prune(self._checkpoint, collab.PruneOptions(heads=0.5), rows).model
            saved(model, folder, time.process_time() - start)
        return load(folder)

    def _healed(self, way: str, folder: Path) -> PreTrainedModel:
        model = self.model(way, False)
        run = collab.RunOptions(steps=self.size.steps, evaluations=2, precision="bfloat16", device="cpu")
        options = collab.HealOptions("layers", self.size.healed, run=run)
        work = self.folder / "healing" / folder.name
        work.mkdir(parents=True, exist_ok=True)
        for written in work.parent.glob(f"*/{WRITTEN}"):  # by the reference, for another way
            if not (work / written.name).exists():
                shutil.copyfile(written, work / written.name)
        collab.heal(
            collab.Checkpoint(model, self.translator.tokenizer),
            self.reference,
            self.sources(self.size.healed),
            options=options,
            work=work,
            restart=True,
        )
        return model

    def seconds(self, way: str, healed: bool) -> float | None:
        """CPU seconds that the last step of a model took, writing the reference's translations included."""
        file = self.folder / f"{way.replace(' ', '-')}{'-healed' if healed else ''}" / "seconds.json"
        return json.loads(file.read_text()) if file.exists() else None

    def report(self, way: str) -> dict[str, Any]:
        """The report of a compression; empty for the reference."""
        file = self.folder / f"{way.replace(' ', '-')}.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def graph(self, way: str, precision: GraphPrecision) -> Any:
        """The graphs of a model, written if need be."""
        folder = self.folder / f"{way.replace(' ', '-')}-{precision}"
        if not folder.exists():
            whole = self.folder / f"{folder.name}-whole"  # as a checkpoint
            self.model(way, way != "reference").save_pretrained(whole)
            self.translator.tokenizer.save_pretrained(whole)
            collab.checkpoints.export(str(whole), folder, ExportOptions("openvino", precision))
            shutil.rmtree(whole)
        return collab.checkpoints.load_exported(folder).model

    def counted(self, way: str, healed: bool, precision: GraphPrecision | None = None, beams: int = 1) -> np.ndarray:
        """What the translations add to BLEU, sentence by sentence; they are kept. By a graph if it has a precision."""
        pairs = self.translator.pairs(SPLIT)[: self.size.judged]
        sources, references = zip(*pairs, strict=True)
        end = f"-{precision}" if precision else "-healed" if healed else ""
        end += f"-{beams}-beams" if beams > 1 else ""
        file = self.folder / f"{way.replace(' ', '-')}{end}-{SPLIT}.txt"
        if not file.exists():
            model = self.graph(way, precision) if precision else self.model(way, healed)
            file.write_text("\n".join(self.translator.translate(model, sources, beams)))
        return ngrams(file.read_text().split("\n"), references)


def rows_of(models: Models) -> list[tuple[str, bool]]:
    """What is measured, in order."""
    return [("reference", False), *((way, healed) for way in WAYS for healed in (False, True))]


def measured(models: Models, way: str, healed: bool) -> dict[str, Any]:
    """BLEU of a model, and its difference to the reference's and, healed, to each dropped one's."""
    mine = models.counted(way, healed)
    row: dict[str, Any] = {
        "way": way,
        "healed": healed,
        "bleu": intervals(mine),
        "seconds": models.seconds(way, healed),
    }
    report = models.report(way)
    if report:
        row |= {name: report[name]["ratio"] for name in ("flops", "parameters", "step_bytes")}
        row["step_bytes_with_vocabulary"] = report["step_bytes_with_vocabulary"]["ratio"]
    if way != "reference":
        row["difference"] = intervals(mine, models.counted("reference", False))["difference"]
    if healed or way == "reference":
        by_beams = models.counted(way, healed, beams=BEAMS)
        row["beams"] = intervals(by_beams, models.counted("reference", False, beams=BEAMS))
    return row


def measured_graph(models: Models, way: str, precision: GraphPrecision) -> dict[str, Any]:
    """BLEU of a graph, and its difference to that of the reference in PyTorch."""
    mine = models.counted(way, way != "reference", precision)
    difference = intervals(mine, models.counted("reference", False))["difference"]
    return {"way": way, "precision": precision, "bleu": intervals(mine), "difference": difference}


def speeds(models: Models, rounds: int) -> dict[str, dict[str, Any]]:
    """Times as fast as the reference at writing, by way and number of rows, in shuffled turns.

    With beams, one row, and a third of the rounds. Models that are not healed yet count too: healing changes no width,
    and all write as many tokens.
    """
    ways = ["reference", *(way for way in WAYS if models.seconds(way, False) is not None)]
    called = {way: models.model(way, models.seconds(way, True) is not None) for way in ways}
    result = in_turn(models, called, SPEEDS, rounds)
    for model in called.values():
        model.generation_config.num_beams = BEAMS
    by_beams = in_turn(models, called, {f"{BEAMS} beams": 1}, max(1, rounds // 3))
    return {way: result[way] | by_beams[way] for way in ways}


def graph_speeds(models: Models, rounds: int) -> dict[str, dict[str, Any]]:
    """The same of graphs, beside the reference's in float32."""
    names = [(way, precision) for precision in PRECISIONS for way in SERVED]
    called = {f"{way}, {precision}": models.graph(way, precision) for way, precision in names}
    return in_turn(models, called, SPEEDS, rounds)


def in_turn(models: Models, called: dict[str, Any], sizes: dict[str, int], rounds: int) -> dict[str, dict[str, Any]]:
    """Times as fast as the first of some models at reading and writing, by name and number of rows."""
    result: dict[str, dict[str, Any]] = {name: {} for name in called}
    for size, rows in sizes.items():
        batch = random_sources(models.reference, rows, LENGTH)
        for name, speed in writing_speeds(called, batch, NEW, rounds).items():
            result[name] |= {f"{what}, {size}": row for what, row in speed.items()}
    return result


def graph_table(result: dict[str, Any]) -> str:
    """One row for each graph."""
    cells = []
    for row in result["graphs"]:
        speed = result["graph_speed"].get(f"{row['way']}, {row['precision']}")
        cells.append(
            [
                row["way"] + (", healed" if row["way"] != "reference" else ""),
                row["precision"],
                "{value:.1f} ({low:.1f} to {high:.1f})".format(**row["bleu"]),
                "{value:+.1f} ({low:+.1f} to {high:+.1f})".format(**row["difference"]),
                *(shown_speed(speed, name) for name in SPEEDS),
            ]
        )
    headings = ["graph for OpenVINO", "", f"BLEU, {SPLIT}", "less the reference in PyTorch"]
    return markdown([*headings, *(f"times as fast as the reference's, {name}" for name in SPEEDS)], cells)


def shown_speed(speed: dict[str, Any] | None, name: str) -> str:
    """Ratio and tokens per second of writing so many rows."""
    own = (speed or {}).get(f"writing, {name}")
    return "{ratio:.2f} ({tokens_per_second:.0f}/s)".format(**own) if own else ""


def beam_table(result: dict[str, Any]) -> str:
    """One row for each healed model: BLEU and speed with beams."""
    name = f"{BEAMS} beams"
    cells = [
        [
            row["way"] + (", healed" if row["healed"] else ""),
            "{value:.1f} ({low:.1f} to {high:.1f})".format(**row["beams"]),
            "{value:+.1f} ({low:+.1f} to {high:+.1f})".format(**row["beams"]["difference"]),
            shown_speed(result["speed"].get(row["way"]), name),
        ]
        for row in result["rows"]
        if "beams" in row
    ]
    return markdown([name, f"BLEU, {SPLIT}", "less the reference", "times as fast, 1 row"], cells)


def table(result: dict[str, Any]) -> str:
    """One row for each model."""
    cells = []
    for row in result["rows"]:
        speed = result["speed"].get(row["way"], {}) if row["healed"] or row["way"] == "reference" else {}
        cells.append(
            [
                row["way"] + (", healed" if row["healed"] else ""),
                *(f"{row[name]:.2f}" if name in row else "" for name in ("step_bytes", "step_bytes_with_vocabulary")),
                f"{row['flops']:.2f}" if "flops" in row else "",
                "{value:.1f} ({low:.1f} to {high:.1f})".format(**row["bleu"]),
                "{value:+.1f} ({low:+.1f} to {high:+.1f})".format(**row["difference"]) if "difference" in row else "",
                *(shown_speed(speed, name) for name in SPEEDS),
                f"{row['seconds']:.0f}" if row["seconds"] else "",
            ]
        )
    headings = ["", "bytes of a step, layers", "with vocabulary", "FLOPs", f"BLEU, {SPLIT}", "less the reference"]
    tables = [markdown([*headings, *(f"times as fast, {name}" for name in SPEEDS), "CPU s"], cells)]
    if any("beams" in row for row in result["rows"]):
        tables.append(beam_table(result))
    if result["graphs"]:
        tables.append(graph_table(result))
    return "\n\n".join(tables)


def main() -> None:
    """Measures what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_const", dest="size", const=SHORT)
    size.add_argument("--rehearse", action="store_const", dest="size", const=REHEARSAL)
    parser.add_argument("--speed", action="store_true", help="measure the speed of what is there, and nothing else")
    parser.add_argument("--graphs", action="store_true", help="of graphs, and nothing else")
    parser.add_argument("--only", action="append", choices=list(WAYS), help="these ways alone; may be given again")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    chosen = given.size or FULL
    models = Models(chosen)

    def add(**more: Any) -> None:
        with my_turn(chosen.name):
            result = {"rows": [], "speed": {}, "graphs": [], "graph_speed": {}} | kept(chosen.name)
            result |= {"machine": machine(), "size": asdict(chosen)}
            result["rows"] += more.get("rows", [])
            order = rows_of(models)
            result["rows"].sort(key=lambda row: order.index((row["way"], row["healed"])))
            result["graphs"] += more.get("graphs", [])
            for name in ("speed", "graph_speed"):
                result[name] |= more.get(name, {})
            write(chosen.name, result, table(result))

    def add_graphs() -> None:
        there = [(row["way"], row["precision"]) for row in kept(chosen.name).get("graphs", [])]
        for way, precision in ((way, precision) for precision in PRECISIONS for way in SERVED):
            if (way, precision) not in there:
                add(graphs=[measured_graph(models, way, precision)])

    if given.speed:
        if given.graphs:
            add(graph_speed=graph_speeds(models, chosen.rounds))
        else:
            add(speed=speeds(models, chosen.rounds))
        return
    if given.graphs:
        add_graphs()
        return
    for way, healed in rows_of(models):
        there = [(row["way"], row["healed"]) for row in kept(chosen.name).get("rows", [])]
        wanted = given.only is None or way in given.only or way == "reference"
        if wanted and (way, healed) not in there:
            add(rows=[measured(models, way, healed)])
    if chosen is REHEARSAL:
        add_graphs()
        add(speed=speeds(models, chosen.rounds), graph_speed=graph_speeds(models, chosen.rounds))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
