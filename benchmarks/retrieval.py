"""What compression costs in search: with the documents' embeddings kept, and with new ones.

Queries are embedded by every model, documents by the original (an index that is kept) and by the same model (an index
computed anew). Four tasks, on text that no model was healed on, as far as it is there:

- STS-B: a sentence of STS-B dev, to find those that people gave a similarity of 4 of 5 or more, among all of dev.
- titles: title of an article and of a section of WikiText-2, to find the section's paragraphs among all paragraphs.
- paragraphs: the first sentence of a paragraph, to find the rest of it among the rests of all paragraphs.
- dialogue: an utterance of a conversation, to find the next one among all. Hard for every model, the original too.

Queries of the two tasks on WikiText are those of its beginning, which no model learned from (see kinds.py); documents
are all of it. Recall@10 is the part of the relevant documents among the first ten, nDCG@10 (scikit-learn's) also looks
at their order. The 95 % intervals are of a paired bootstrap over the queries of each task.

    python benchmarks/retrieval.py                                   # models as benchmarks/serving.py makes them
    python benchmarks/retrieval.py --model half=FOLDER --model third=FOLDER [--no-int8]

Writes results/retrieval.json and .md. Models of benchmarks/work/kinds are made where they are missing (ten CPU minutes
each); the measurement takes two minutes for each model, and its int8 graph a minute more.
"""

from __future__ import annotations

import argparse
import itertools
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import demo_folder, machine, markdown, sentences_of, shared_data, stsb, wikitext_lines, write
from compression import embed
from healing import wikitext_sentences
from kinds import BUDGETS, texts
from serving import checkpoint
from sklearn.metrics import ndcg_score
from transformers import AutoTokenizer

import collab
from collab.evaluation.worker import load_any
from collab.graphs.options import OPENVINO_FILE

MODELS = "half", "third", "three layers dropped"
FIRST = 10
DRAWS = 1000
SIMILAR = 4.0
HELD_BACK = 1000
"""Sentences at the beginning of WikiText-2 that no model learns from (kinds.py)."""


@dataclass(frozen=True)
class Search:
    """A task: what is asked, what can be found, and what should be."""

    queries: list[str]
    documents: list[str]
    relevant: np.ndarray  # (queries, documents), bool
    left_out: np.ndarray  # (queries, documents), bool: the query itself, where it is a document too


def main() -> None:
    """Measures the original and every model, with and without int8."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", metavar="NAME[=FOLDER]", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--no-int8", action="store_true")
    chosen = parser.parse_args()
    searches = tasks()
    tokenizer: Any = AutoTokenizer.from_pretrained(demo_folder())
    own = embeddings(load_any(str(demo_folder())).model, tokenizer, searches)
    baseline = {task: judge(search, *own[task]) for task, search in searches.items()}
    rows = [row("original", "its own", baseline, baseline)]
    sizes = {
        task: {"queries": len(search.queries), "documents": len(search.documents)} for task, search in searches.items()
    }
    with tempfile.TemporaryDirectory() as scratch:
        folders = models(chosen.model or MODELS, Path(scratch))
        for precision in ("float32",) if chosen.no_int8 else ("float32", "int8"):
            for name, folder in folders.items():
                if (name, precision) == ("original", "float32"):
                    continue
                path = folder if precision == "float32" else quantized(folder, Path(scratch) / f"graph-{len(rows)}")
                label = name if precision == "float32" else f"{name}, int8"
                rows += both(label, embeddings(load_any(path).model, tokenizer, searches), own, baseline, searches)
                write("retrieval", {"machine": machine(), "tasks": sizes, "rows": rows}, table(sizes, rows))


def models(asked: Sequence[str], scratch: Path) -> dict[str, str]:
    """By name, folders: the original's, those that were given, and those of serving.py, made where they are missing."""
    folders = {"original": str(demo_folder())}
    for text in asked:
        name, _, folder = text.partition("=")
        if not folder and name not in (*BUDGETS, "converted"):
            raise SystemExit(f"{name} is not a model of benchmarks/serving.py; give its folder: --model {name}=FOLDER")
        folders[name] = folder or str(checkpoint(name, scratch))
    return folders


def quantized(folder: str, output: Path) -> str:
    """An int8 graph for OpenVINO, calibrated as in serving.py."""
    mixture = collab.Mixture({kind: rows for kind, (rows, _) in texts().items()})
    calibration = collab.CalibrationRequest(mixture, collab.CalibrationOptions(2048, 128))
    collab.checkpoints.export(folder, output, collab.ExportOptions("openvino", "int8"), calibration=calibration)
    return str(output / OPENVINO_FILE)


def tasks() -> dict[str, Search]:
    """The four of the module's docstring."""
    first, second, scores = stsb("dev")
    documents = list(dict.fromkeys(first + second))
    similar = [(a, b) for a, b, score in zip(first, second, scores, strict=True) if score >= SIMILAR and a != b]
    titles, rests = wikitext()
    spoken = (shared_data() / "data" / "dialogue" / "validation.txt").read_text(encoding="utf-8").split("\n")
    spoken = [line.strip() for line in spoken]
    turns = [(a, b) for a, b in itertools.pairwise(spoken) if a and b and a != b]
    return {
        "STS-B": search(similar + [(b, a) for a, b in similar], documents),
        "titles": titles,
        "paragraphs": rests,
        "dialogue": search(turns, list(dict.fromkeys(line for line in spoken if line))),
    }


def search(pairs: Sequence[tuple[str, str]], documents: list[str]) -> Search:
    """A task of pairs of a query and a document that answers it; a query may have several."""
    queries = list(dict.fromkeys(query for query, _ in pairs))
    row_of = {text: number for number, text in enumerate(queries)}
    column_of = {text: number for number, text in enumerate(documents)}
    relevant = np.zeros((len(queries), len(documents)), dtype=bool)
    left_out = np.zeros_like(relevant)
    for query, document in pairs:
        relevant[row_of[query], column_of[document]] = True
    for query, number in row_of.items():
        if query in column_of:
            left_out[number, column_of[query]] = True
    return Search(queries, documents, relevant, left_out)


def wikitext() -> tuple[Search, Search]:
    """Titles to paragraphs, and first sentences to the rest of their paragraphs."""
    unseen = set(wikitext_sentences()[:HELD_BACK])
    article = section = ""
    titled, continued = [], []  # (query, document, whether no model learned from the paragraph)
    for line in wikitext_lines():
        if heading := re.fullmatch(r" (=(?: =)*) (.*?) \1 ", line):
            deep = heading[1].count("=") > 1
            article, section = (article, heading[2]) if deep else (heading[2], "")
        elif len(line) > 200:
            first, *others = [part for part in sentences_of(line) if part]
            kept = all(part in unseen for part in (first, *others) if len(part.split()) > 4 and "=" not in part)
            titled.append((f"{article}: {section}" if section else article, line.strip(), kept))
            if others:
                continued.append((first, " ".join(others), kept))
    return tuple(  # type: ignore[return-value]
        search(
            [(query, document) for query, document, kept in pairs if kept],
            list(dict.fromkeys(document for _, document, _ in pairs)),
        )
        for pairs in (titled, continued)
    )


def embeddings(model: Any, tokenizer: Any, searches: dict[str, Search]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By task, of unit length: queries (queries, D) and documents (documents, D)."""
    return {
        task: (embed(model, tokenizer, search.queries), embed(model, tokenizer, search.documents))
        for task, search in searches.items()
    }


def judge(search: Search, queries: np.ndarray, documents: np.ndarray) -> dict[str, np.ndarray]:
    """Recall and nDCG of the first ten, by query."""
    scores = np.where(search.left_out, -2.0, queries @ documents.T)  # (queries, documents); a cosine is at least -1
    top = np.argpartition(-scores, FIRST, axis=1)[:, :FIRST]
    recall = np.take_along_axis(search.relevant, top, axis=1).sum(1) / search.relevant.sum(1)
    rows = zip(search.relevant.astype(float), scores, strict=True)
    ndcg = [ndcg_score([wanted], [given], k=FIRST, ignore_ties=True) for wanted, given in rows]
    return {"recall": recall, "ndcg": np.array(ndcg)}


def both(
    label: str,
    mine: dict[str, tuple[np.ndarray, np.ndarray]],
    original: dict[str, tuple[np.ndarray, np.ndarray]],
    baseline: dict[str, dict[str, np.ndarray]],
    searches: dict[str, Search],
) -> list[dict[str, Any]]:
    """A model's queries against the original's documents, and against its own."""
    kept = {task: judge(search, mine[task][0], original[task][1]) for task, search in searches.items()}
    anew = {task: judge(search, *mine[task]) for task, search in searches.items()}
    return [row(label, "the original's", kept, baseline), row(label, "its own", anew, baseline)]


def row(
    queries: str, documents: str, measured: dict[str, dict[str, np.ndarray]], baseline: dict[str, dict[str, np.ndarray]]
) -> dict[str, Any]:
    """Means over the queries, and what is lost of the original's, with an interval for each task and for their mean."""
    made: dict[str, Any] = {"queries": queries, "documents": documents, "tasks": {}}
    generator = np.random.default_rng(0)
    drawn = []
    for task, by_metric in measured.items():
        lost = by_metric["ndcg"] - baseline[task]["ndcg"]
        draws = lost[generator.integers(len(lost), size=(DRAWS, len(lost)))].mean(1)
        drawn.append(draws)
        made["tasks"][task] = {metric: float(values.mean()) for metric, values in by_metric.items()} | {
            "ndcg_difference": float(lost.mean()),
            "ndcg_interval": np.quantile(draws, (0.025, 0.975)).tolist(),
        }
    made["ndcg_difference"] = float(np.mean([entry["ndcg_difference"] for entry in made["tasks"].values()]))
    made["ndcg_interval"] = np.quantile(np.mean(drawn, axis=0), (0.025, 0.975)).tolist()
    return made


def table(tasks: dict[str, dict[str, int]], rows: list[dict[str, Any]]) -> str:
    """Two tables, of nDCG and of recall, with a column for each task."""
    parts = []
    for metric, title in (("ndcg", "nDCG@10 ×100"), ("recall", "Recall@10 ×100")):
        headings = ["queries", "documents", *tasks]
        headings += ["less than the original, mean"] if metric == "ndcg" else []
        cells = []
        for entry in rows:
            values = [f"{100 * entry['tasks'][task][metric]:.1f}" for task in tasks]
            if metric == "ndcg":
                low, high = (100 * bound for bound in entry["ndcg_interval"])
                first = entry["queries"] == "original"
                values.append("" if first else f"{100 * entry['ndcg_difference']:+.1f} ({low:+.1f} to {high:+.1f})")
            cells.append([entry["queries"], entry["documents"], *values])
        parts += [f"### {title}", markdown(headings, cells)]
    sizes = (f"{task} {size['queries']} in {size['documents']}" for task, size in tasks.items())
    return "\n\n".join([*parts, f"Queries and documents: {', '.join(sizes)}."])


if __name__ == "__main__":
    main()
