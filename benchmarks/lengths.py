"""How close compressed models stay to their original on texts of different lengths.

The models of `unseen.py`, healed on all six kinds of text, whose rows are sentences. They are judged on sentences and
whole paragraphs of WikiText-2 that they were not healed on, and on questions and utterances one after another, cut to
so many tokens: the mean cosine to the original's embeddings.

    python benchmarks/lengths.py [--model half] [--recipe default] [--recipe "rows not joined"]

Models that `unseen.py` has not left in work/kinds are made first, about ten CPU minutes each. Writes
results/lengths.json and .md; rows are kept as they finish.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator
from typing import Any

import torch
from common import demo_folder, kept, machine, markdown, shared_data, write
from kinds import BUDGETS, STEPS, made, texts
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from unseen import RECIPES, folder_of

import collab

LENGTHS = 64, 128, 256
RUNS = 64
"""Runs of tokens of each length and kind at most."""


def main() -> None:
    """Measures what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=tuple(BUDGETS))
    parser.add_argument("--recipe", action="append", choices=tuple(RECIPES))
    chosen = parser.parse_args()
    rows = kept("lengths").get("rows", [])
    judge = None
    for model, recipe in itertools.product(chosen.model or ("half",), chosen.recipe or ("default", "rows not joined")):
        if any((row["model"], row["recipe"]) == (model, recipe) for row in rows):
            continue
        settings = {"steps": STEPS} | RECIPES[recipe]
        folder = folder_of("demo", model, "none", recipe, settings["steps"], 0)
        if not folder.is_dir():
            made(model, folder, **settings)
        judge = judge or Judge()
        rows.append({"model": model, "recipe": recipe} | judge.measure(collab.load(str(folder)).model.float().eval()))
        write("lengths", {"machine": machine(), "rows": rows}, table(rows))


class Judge:
    """Cosine to the original's embeddings by kind and length of text."""

    def __init__(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(demo_folder())
        self.texts: dict[str, list[Tensor]] = {}

        def add(name: str, ids: list[int]) -> None:
            self.texts.setdefault(name, []).append(torch.tensor([ids]))  # (1, T)

        judged = {kind: rows for kind, (_, rows) in texts().items()}
        for sentence in judged["WikiText"]:
            add("sentences", tokenizer(sentence)["input_ids"])
        paragraphs = unseen_paragraphs(set(judged["WikiText"]))
        rows = [tokenizer(text, truncation=True, max_length=LENGTHS[-1])["input_ids"] for text in paragraphs]
        for ids in sorted(rows, key=len):
            longer = [length for length in LENGTHS[1:] if len(ids) < length]
            add(f"paragraphs < {longer[0]}" if longer else f"paragraphs, {LENGTHS[-1]}", ids)
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
        for kind, length in itertools.product(("questions", "dialogue"), LENGTHS):
            stream = [
                number for row in judged[kind] for number in tokenizer(row, add_special_tokens=False)["input_ids"]
            ]
            inner = length - 2
            runs = len(stream) // inner
            for number in range(0, runs, -(-runs // RUNS)):
                add(f"{kind}, {length}", [first, *stream[number * inner : (number + 1) * inner], last])
        original = AutoModel.from_pretrained(demo_folder()).eval()
        self.expected = {name: embedded(original, rows) for name, rows in self.texts.items()}

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """The mean cosine by name of the texts."""
        return {
            name: float((embedded(model, rows) * self.expected[name]).sum(1).mean())
            for name, rows in self.texts.items()
        }


@torch.no_grad()
def embedded(model: PreTrainedModel, rows: list[Tensor]) -> Tensor:
    """Normalized means of the last states of rows, (1, T) each; (rows, D)."""
    means = [model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.mean(1) for ids in rows]
    return torch.nn.functional.normalize(torch.cat(means), dim=-1)


def unseen_paragraphs(judged: set[str]) -> Iterator[str]:
    """Paragraphs of WikiText-2 of more than 40 words, all of whose sentences are judged by and not learned from."""
    content = (shared_data() / "data" / "wikitext2" / "wiki.valid.tokens").read_text(encoding="utf-8")
    for line in map(str.strip, content.splitlines()):
        sentences = [part.strip() for part in re.split(r"(?<= [.!?]) ", line)]  # as `wikitext_sentences` divides them
        known = all(sentence in judged for sentence in sentences if len(sentence.split()) > 4)
        if len(line.split()) > 40 and "=" not in line and known:
            yield line


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each kind and length of text, a column for each model."""
    headings = ["text", *(f"{row['model']}, {row['recipe']}" for row in rows)]
    names = [name for name in rows[0] if name not in ("model", "recipe")]
    return markdown(headings, [[name, *(f"{row[name]:.3f}" for row in rows)] for name in names])


if __name__ == "__main__":
    main()
