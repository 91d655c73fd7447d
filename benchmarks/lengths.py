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
from collections.abc import Iterable, Iterator
from typing import Any

from common import demo_folder, kept, machine, markdown, sentences_of, wikitext_lines, write
from compression import embed_rows
from kinds import BUDGETS, texts
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from unseen import RECIPES, healed_on_all

import collab
from collab.data.batches import Feature, length_of

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
        compressed = collab.load(str(healed_on_all(model, recipe))).model.float()
        judge = judge or Judge()
        rows.append({"model": model, "recipe": recipe} | judge.measure(compressed))
        write("lengths", {"machine": machine(), "rows": rows}, table(rows))


class Judge:
    """Cosine to the original's embeddings by kind and length of text."""

    def __init__(self) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(demo_folder())
        self.rows: dict[str, list[Feature]] = {}
        judged = {kind: rows for kind, (_, rows) in texts().items()}
        self.rows["sentences"] = self._features(judged["WikiText"])
        paragraphs = self._features(unseen_paragraphs(set(judged["WikiText"])))
        for row in sorted(paragraphs, key=length_of):
            longer = [length for length in LENGTHS[1:] if length_of(row) < length]
            name = f"paragraphs < {longer[0]}" if longer else f"paragraphs, {LENGTHS[-1]}"
            self.rows.setdefault(name, []).append(row)
        for kind, length in itertools.product(("questions", "dialogue"), LENGTHS):
            self.rows[f"{kind}, {length}"] = self._runs(judged[kind], length)
        original = AutoModel.from_pretrained(demo_folder()).eval()
        self.expected = {name: embed_rows(original, self.tokenizer, rows) for name, rows in self.rows.items()}

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """The mean cosine by name of the texts."""
        return {
            name: float((embed_rows(model, self.tokenizer, rows) * self.expected[name]).sum(1).mean())
            for name, rows in self.rows.items()
        }

    def _features(self, rows: Iterable[str]) -> list[Feature]:
        """Tokenized texts, cut to the largest length."""
        return [dict(self.tokenizer(text, truncation=True, max_length=LENGTHS[-1])) for text in rows]

    def _runs(self, rows: list[str], length: int) -> list[Feature]:
        """Runs of so many tokens, with the special ones, of texts one after another."""
        stream = [*itertools.chain.from_iterable(self.tokenizer(rows, add_special_tokens=False)["input_ids"])]
        inner = length - 2
        runs = len(stream) // inner
        first, last = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        return [
            {
                "input_ids": [first, *stream[number * inner : (number + 1) * inner], last],
                "attention_mask": [1] * length,
            }
            for number in range(0, runs, -(-runs // RUNS))
        ]


def unseen_paragraphs(judged: set[str]) -> Iterator[str]:
    """Paragraphs of WikiText-2 of more than 40 words, all of whose sentences are judged by and not learned from."""
    for line in wikitext_lines():
        known = all(sentence in judged for sentence in sentences_of(line.strip()) if len(sentence.split()) > 4)
        if len(line.split()) > 40 and "=" not in line and known:
            yield line.strip()


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each kind and length of text, a column for each model."""
    headings = ["text", *(f"{row['model']}, {row['recipe']}" for row in rows)]
    names = [name for name in rows[0] if name not in ("model", "recipe")]
    return markdown(headings, [[name, *(f"{row[name]:.3f}" for row in rows)] for name in names])


if __name__ == "__main__":
    main()
