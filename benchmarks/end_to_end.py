"""Whole models in turn: the original, the paper's formula as written, and conversions, at 8×128 and 2×512 tokens.

The demo checkpoint, with the quality of each conversion beside its speed, and a random model of BERT-base's size. What
`collab convert --params 0.5 --form auto --optimize speed` chooses is the row named speed; the others keep as many
query/key parameters in one form. Each runs in PyTorch (float32, with every second row a quarter shorter too, and
bfloat16), and the faster ones under torch.compile and as an ONNX graph in onnxruntime, always beside the original run
the same way, in another order every round.

    python benchmarks/end_to_end.py              # CPU, about fifteen minutes on two cores
    python benchmarks/end_to_end.py --device cuda
    python benchmarks/end_to_end.py --only demo  # or base
    python benchmarks/end_to_end.py --only demo --how onnxruntime --rounds 45  # one way again, the others kept

Writes results/end_to_end.json, .md and .png. Rows are kept as each model is done, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
import transformers
from attention import formula
from common import COLORS, RESULTS, demo_folder, kept, machine, markdown, shuffled_rounds, write
from judge import Judge, stsb_sentences
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, BertModel

import collab
from collab.graphs.runtime import OnnxSession
from collab.graphs.trace import Graph, write_graph
from collab.modeling.collab_attention import CollaborativeSelfAttention

SHAPES = ((8, 128), (2, 512))
HOWS = ("float32", "float32, padded", "bfloat16", "compiled", "onnxruntime")
HALF = {"params": 0.5, "allocation": "uniform"}
CONVERSIONS = {
    "speed": collab.ConversionConfig(form="auto", optimize="speed", **HALF),
    "concat, 1/2": collab.ConversionConfig(form="concat", **HALF),
    "cp, 1/2": collab.ConversionConfig(form="cp", **HALF),
    "tucker, 1/2": collab.ConversionConfig(form="tucker", **HALF),
    "cp, 1/3": collab.ConversionConfig(form="cp", params=1 / 3, allocation="uniform"),
}
COMPILED = ("original", "speed", "concat, 1/2")
"""Models that are also run under torch.compile and in onnxruntime."""
Models = dict[str, nn.Module]
Quality = dict[str, dict[str, Any]]
"""By model: form, rank, the part of the query/key parameters that is left, and how well it does its work, if known."""


def what_it_is(report: collab.Conversion) -> dict[str, Any]:
    """A conversion's form, rank and size."""
    layer = report.layers[0]
    return {"query_key": report.query_key.ratio, "form": layer.form, "rank": layer.rank}


def demo(folder: Path) -> tuple[Models, Quality]:
    """The demo checkpoint, and its conversions on STS-B train sentences."""
    text = folder / "text.txt"
    text.write_text("\n".join(stsb_sentences()[:1024]))
    models: Models = {"original": AutoModel.from_pretrained(demo_folder())}
    quality: Quality = {"original": {}}
    request = collab.CalibrationRequest(collab.DataSource(str(text)), cache=folder / "moments.safetensors")
    for name, config in CONVERSIONS.items():
        output = written(folder, name)
        converted = collab.checkpoints.convert(str(demo_folder()), output, config, calibration=request)
        quality[name] = what_it_is(converted.report)
        models[name] = AutoModel.from_pretrained(output)
    return models, quality


def judged(folder: Path, quality: Quality) -> Quality:
    """The quality of the demo checkpoint's conversions on STS-B dev, and of the one named speed when it is healed."""
    judge = Judge()
    qualities = {"original": {"spearman": judge.spearman, "cosine": 1.0}}
    qualities |= {name: quality[name] | judge.measure(written(folder, name)) for name in CONVERSIONS}
    text = collab.DataSource(str(folder / "text.txt"))
    collab.checkpoints.heal(str(written(folder, "speed")), folder / "healed", text)
    qualities["speed"]["healed"] = judge.measure(folder / "healed")
    return qualities


def written(folder: Path, name: str) -> Path:
    """Where a conversion is."""
    return folder / name.replace("/", "-")


def base(folder: Path) -> tuple[Models, Quality]:
    """A random model of BERT-base's size; how well it is converted does not matter here."""
    torch.manual_seed(0)
    original = BertModel(BertConfig())
    models: Models = {"original": original}
    quality: Quality = {"original": {}}
    for name, config in CONVERSIONS.items():
        conversion = collab.convert(original, replace(config, solver=collab.SolverOptions(max_sweeps=1), compare=False))
        models[name] = conversion.model
        quality[name] = what_it_is(conversion.report)
    return models, quality


SOURCES = {"demo": (demo, judged), "base": (base, None)}
"""By name: what makes the models, and what judges them."""


def plain(model: nn.Module) -> nn.Module:
    """A converted model whose layers compute the paper's formula as written."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, CollaborativeSelfAttention):
            layer.forward = lambda hidden_states, attention_mask=None, layer=layer, **_: (
                layer.output(formula(layer, hidden_states, attention_mask), hidden_states),
                None,
            )
    return model


def in_turn(runs: dict[str, Callable[..., Any]], inputs: dict[str, Tensor], rounds: int) -> list[dict]:
    """Milliseconds of every run and how many times as fast as the first it is."""
    taken = shuffled_rounds([(run, [inputs]) for run in runs.values()], rounds)
    rows = []
    for number, name in enumerate(runs):
        ratios = [seconds[0] / seconds[number] for seconds in taken]
        rows.append(
            {
                "model": name,
                "shape": list(inputs["input_ids"].shape),
                "milliseconds": 1e3 * median(seconds[number] for seconds in taken),
                "faster": median(ratios),
                "quartiles": np.quantile(ratios, (0.25, 0.75)).tolist(),
            }
        )
    return rows


def measure(models: Models, folder: Path, device: str, hows: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Every way of running that is asked for, at every shape."""
    models = {name: model.eval().to(device) for name, model in models.items()}
    few = {name: models[name] for name in COMPILED}
    graphs = {}
    if "onnxruntime" in hows:
        for name, model in few.items():
            file = folder / f"{name.replace('/', '-')}.onnx"
            write_graph(Graph(model), file)
            graphs[name] = OnnxSession(file)
    rows: list[dict[str, Any]] = []
    for how in hows:
        for batch, length in SHAPES:
            inputs = {"input_ids": torch.randint(1000, 30000, (batch, length), device=device)}
            mask = torch.ones_like(inputs["input_ids"])
            runs: dict[str, Callable[..., Any]] = dict(models)
            if how == "float32":
                runs |= {f"{name}, the formula": plain(models[name]) for name in ("cp, 1/2", "tucker, 1/2")}
            elif how == "float32, padded":
                mask[::2, length * 3 // 4 :] = 0
                inputs["attention_mask"] = mask
            elif how == "bfloat16":
                runs = {name: copy.deepcopy(model).to(torch.bfloat16) for name, model in models.items()}
            elif how == "compiled":
                torch.compiler.reset()
                runs = {name: torch.compile(model, dynamic=False) for name, model in few.items()}
            else:
                given = inputs | {"attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}
                arrays = {name: value.numpy() for name, value in given.items()}
                runs = {
                    name: (lambda input_ids, graph=graph, arrays=arrays: graph.run(arrays))
                    for name, graph in graphs.items()
                }
            rows += [{"how": how} | row for row in in_turn(runs, inputs, rounds)]
    torch.compiler.reset()
    return rows


def table(result: dict[str, Any]) -> str:
    """A row for every model and way of running."""
    sections = []
    for source, measured in result["sources"].items():
        cells = []
        for how in dict.fromkeys(row["how"] for row in measured["rows"]):
            mine = [row for row in measured["rows"] if row["how"] == how]
            for name in dict.fromkeys(row["model"] for row in mine):
                quality = measured["quality"].get(name, {})
                cells.append([f"{how}: {name}"])
                what = f"{quality['form']}, {quality['rank']}" if "form" in quality else ""
                cells[-1] += [what, f"{quality['query_key']:.2f}" if what else ""]
                if source == "demo":
                    shown = how == "float32" and "spearman" in quality
                    cells[-1] += [f"{quality['spearman']:.2f}, {quality['cosine']:.4f}" if shown else ""]
                for shape in SHAPES:
                    row = next(entry for entry in mine if entry["model"] == name and tuple(entry["shape"]) == shape)
                    spread = "–".join(f"{entry:.2f}" for entry in row["quartiles"])
                    cells[-1] += [f"{row['milliseconds']:.0f}", f"{row['faster']:.2f} ({spread})"]
        headings = ["", "form, R", "query/key left", *(["Spearman, cosine"] if source == "demo" else [])]
        for batch, length in SHAPES:
            headings += [f"{batch}×{length}, ms", "times the original"]
        sections += [f"### {source}", markdown(headings, cells)]
        healed = measured["quality"].get("speed", {}).get("healed")
        if healed:
            sections.append(
                f"The speed row healed without labels: Spearman {healed['spearman']:.2f}, "
                f"cosine {healed['cosine']:.4f}."
            )
    return "\n\n".join(sections)


def figure(result: dict[str, Any]) -> None:
    """Quality against speed on the demo checkpoint."""
    measured = result["sources"].get("demo")
    if not measured:
        return
    _, axes = plt.subplots(1, len(SHAPES), figsize=(4.2 * len(SHAPES), 3.4), sharey=True, layout="constrained")
    for axis, shape in zip(axes, SHAPES, strict=True):
        for row in measured["rows"]:
            if row["how"] != "float32" or tuple(row["shape"]) != shape:
                continue
            name = row["model"].removesuffix(", the formula")
            quality = measured["quality"][name]
            color = COLORS.get(quality.get("form", ""), "black")
            hollow = "none" if name != row["model"] else color
            axis.plot(row["faster"], quality["cosine"], "o", color=color, markerfacecolor=hollow)
            if name == row["model"]:
                below = name in ("tucker, 1/2", "speed")
                place = {"xytext": (0, -9 if below else 5), "textcoords": "offset points", "ha": "center"}
                axis.annotate(name, (row["faster"], quality["cosine"]), fontsize=6, **place)
        axis.margins(0.1)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set(title=f"{shape[0]} × {shape[1]} tokens", xlabel="times as fast as the original")
    axes[0].set_ylabel("cosine to the original's embeddings\n(hollow: the paper's formula)")
    plt.savefig(RESULTS / "end_to_end.png", dpi=200)
    plt.close()


def main() -> None:
    """Measures what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=["demo", "base"])
    parser.add_argument("--how", action="append", choices=HOWS)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()
    sources = kept("end_to_end").get("sources", {})
    for source, (build, judge) in SOURCES.items():
        name = source if arguments.device == "cpu" else f"{source}, {arguments.device}"
        again = arguments.how is not None and name in sources
        if (name in sources and not again) or arguments.only not in (None, source):
            continue
        hows = [how for how in arguments.how or HOWS if how != "onnxruntime" or arguments.device == "cpu"]
        with tempfile.TemporaryDirectory() as folder:
            models, quality = build(Path(folder))
            if again:
                quality = sources[name]["quality"]
            elif judge:
                quality = judge(Path(folder), quality)
            load = os.getloadavg()[0]
            print(f"{name}: converted; measuring", flush=True)
            with torch.no_grad():
                rows = measure(models, Path(folder), arguments.device, hows, arguments.rounds)
        if again:
            rows += [row for row in sources[name]["rows"] if row["how"] not in hows]
            rows.sort(key=lambda row: HOWS.index(row["how"]))
        sources[name] = {"quality": quality, "rows": rows, "load": load, "device": arguments.device}
        result = {"machine": machine(), "sources": sources}
        write("end_to_end", result, table(result))
        figure(result)


if __name__ == "__main__":
    main()
