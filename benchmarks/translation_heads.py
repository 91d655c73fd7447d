"""Heads of a translation model by kind of attention: importance, BLEU without some, a figure (Michel et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from common import COLORS, RESULTS, markdown
from transformers import PreTrainedModel
from translator import Translator, intervals

import collab
from collab.evaluation.translation import ngrams
from collab.heads.gates import closed
from collab.heads.selection import Importance, least_important
from collab.models.layers import AttentionLayer, attention_layers

KINDS = {"encoder": "encoder", "decoder": "decoder", "cross": "encoder-decoder"}
STEPS = 8
"""Heads of a kind go in as many steps, the last of which leaves none; of all kinds at once, the last but one."""


class Heads:
    """A trained model and what is measured of its heads."""

    def __init__(self, translator: Translator, model: Callable[[], PreTrainedModel]) -> None:
        self.translator = translator
        self._model = model

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model, loaded when the first measurement needs it."""
        return self._model()

    @property
    def layers(self) -> list[AttentionLayer]:
        """Its attention layers."""
        return attention_layers(self.model)

    @cached_property
    def scores(self) -> collab.HeadScores:
        """The gradient's importance, and how much the model's answers change without a head and with it alone."""
        checkpoint = collab.Checkpoint(self.model, self.translator.tokenizer)
        options = collab.ScoreOptions(("gradient", "ablation", "alone"))
        return collab.score_heads(checkpoint, self.translator.pairs("train"), options=options)

    @cached_property
    def ranking(self) -> Importance:
        """The gradient's importance, that of every layer divided by its norm, as in Michel et al."""
        ranked = {}
        for name, heads in self.scores.importance("gradient").items():
            norm = float(np.linalg.norm([*heads.values()]))
            ranked[name] = {head: value / norm for head, value in heads.items()}
        return ranked

    def measurements(self) -> dict[str, Callable[[], Any]]:
        """Everything that is measured, by name."""
        ablations = {f"ablation-{kind}": partial(self.ablation, kind) for kind in KINDS}
        curves = {f"curve-{kind}": partial(self.curve, kind) for kind in (*KINDS, "all")}
        return {"importance": self.importance} | ablations | curves

    def importance(self) -> list[dict[str, Any]]:
        """Every head's scores, layer by layer."""
        scores = self.scores.scores
        return [
            {"layer": layer.name, "kind": layer.kind} | {name: values[layer.name] for name, values in scores.items()}
            for layer in self.layers
        ]

    def ablation(self, kind: str) -> list[dict[str, Any]]:
        """BLEU of greedy translations without each head, and with no other in its layer, less that of the whole."""
        sources, references = zip(*self.translator.pairs("val")[: self.translator.setting.ablated_rows], strict=True)

        def translated(**hidden: list[int]) -> np.ndarray:
            with closed(layers, hidden):
                return ngrams(self.translator.translate(self.model, sources, beams=1), references)

        layers = self.layers
        whole = translated()
        measured = []
        for layer in layers:
            if layer.kind == kind:
                others = [[other for other in layer.heads if other != head] for head in layer.heads]
                hidden = {"without": [[head] for head in layer.heads], "alone": others}
                measured.append(
                    {"layer": layer.name, "kind": kind, "whole": intervals(whole)}
                    | {
                        how: [intervals(translated(**{layer.name: heads}), whole) for heads in sets]
                        for how, sets in hidden.items()
                    }
                )
        return measured

    def curve(self, kind: str) -> list[dict[str, Any]]:
        """BLEU on test_2017 as heads of one kind, or of all, are removed in one go, the least important first."""
        sources, references = zip(*self.translator.pairs("test_2017"), strict=True)
        names = [layer.name for layer in self.layers if kind in (layer.kind, "all")]
        ranked = {name: self.ranking[name] for name in names}
        total = sum(map(len, ranked.values()))
        points: list[dict[str, Any]] = []
        whole = None
        for step in range(STEPS + (kind != "all")):
            gone = round(total * step / STEPS)
            keep = least_important(ranked, gone) if gone < total else dict.fromkeys(names, ())
            pruned = collab.prune(self.model, keep).model if gone else self.model
            translated = ngrams(self.translator.translate(pruned, sources, self.translator.setting.beams), references)
            whole = translated if whole is None else whole
            points.append({"fraction": step / STEPS, "heads": total - gone, "bleu": intervals(translated, whole)})
        return points


def head_tables(heads: dict[str, Any]) -> list[str]:
    """Tables of what was measured so far."""
    tables = []
    importance = {row["layer"]: row for row in heads.get("importance", [])}
    cells = []
    for row in [row for kind in KINDS for row in heads.get(f"ablation-{kind}", [])]:
        without, alone, layer = row["without"], row["alone"], row["layer"]
        worse = sum(entry["difference"]["high"] < 0 for entry in without)
        better = sum(entry["difference"]["low"] > 0 for entry in without)
        gradient = f"{np.mean(importance[layer]['gradient']):.3g}" if layer in importance else ""
        lowest, best = (
            extreme([entry["value"] for entry in found]) for extreme, found in ((min, without), (max, alone))
        )
        whole = row["whole"]["value"]
        cells.append([f"{layer}, {KINDS[row['kind']]}", gradient])
        cells[-1] += [f"{whole:.1f}", f"{lowest:.1f}", str(worse), str(better), f"{best:.1f}"]
    if cells:
        headings = ["layer", "gradient, mean of heads", "BLEU, val, greedy", "without the head that it needs most"]
        headings += ["heads without which it is worse", "better", "with its best head alone"]
        tables += ["### heads, one at a time", markdown(headings, cells)]
    curves = {kind: heads[f"curve-{kind}"] for kind in (*KINDS, "all") if f"curve-{kind}" in heads}
    if curves:
        cells = []
        for kind, points in curves.items():
            shown = [f"{point['bleu']['value']:.1f}" for point in points]
            cells.append([KINDS.get(kind, kind), *shown, *[""] * (STEPS + 1 - len(shown))])
        headings = ["BLEU, test_2017, with heads gone", *(f"{step / STEPS:.1%}" for step in range(STEPS + 1))]
        tables += ["### heads, many at once", markdown(headings, cells)]
    return tables


def draw(name: str, heads: dict[str, Any]) -> None:
    """BLEU against the heads that are gone, with the intervals of the difference to the whole model."""
    curves = {kind: heads[f"curve-{kind}"] for kind in (*KINDS, "all") if f"curve-{kind}" in heads}
    if not curves:
        return
    figure, axis = plt.subplots(figsize=(5, 3.8), layout="constrained")
    colors = dict(zip(curves, (COLORS["cp"], COLORS["tucker"], COLORS["rival"], "black"), strict=False))
    for kind, points in curves.items():
        gone = [100 * point["fraction"] for point in points]
        whole = points[0]["bleu"]["value"]
        low, high = ([whole + point["bleu"]["difference"][end] for point in points] for end in ("low", "high"))
        axis.plot(
            gone, [point["bleu"]["value"] for point in points], "-o", color=colors[kind], label=KINDS.get(kind, kind)
        )
        axis.fill_between(gone, low, high, color=colors[kind], alpha=0.15, linewidth=0)
    axis.set(xlabel="heads of this kind gone, %", ylabel="BLEU, test_2017")
    axis.legend(fontsize=7)
    figure.savefig(RESULTS / f"{name}.png", dpi=200)
    plt.close(figure)
