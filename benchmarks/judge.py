"""What conversions of the demo checkpoint are compared with: STS-B dev and paragraphs that none of them has seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from common import demo_folder, stsb, wikitext_lines
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer


def stsb_sentences(split: str = "train") -> list[str]:
    """The sentences of a split of STS-B, each once, in random order."""
    first, second, _ = stsb(split)
    sentences = sorted(set(first + second))
    return [sentences[i] for i in np.random.default_rng(0).permutation(len(sentences))]


def paragraphs() -> list[str]:
    """WikiText paragraphs: long text."""
    return [line.strip() for line in wikitext_lines() if len(line) > 200]


class Judge:
    """The original's embeddings of STS-B dev and of 50 paragraphs, and its correlation with the human scores."""

    def __init__(self) -> None:
        self.first, self.second, self.scores = stsb("dev")
        self.paragraphs = paragraphs()[-50:]
        self.spearman, self.embeddings = self._embed(demo_folder())

    def measure(self, folder: Path) -> dict[str, float]:
        """Spearman correlation ×100 of a model, and mean cosines of its embeddings with the original's."""
        spearman, embeddings = self._embed(folder)
        cosines = (embeddings * self.embeddings).sum(axis=1)
        short, long = np.split(cosines, [len(cosines) - len(self.paragraphs)])
        return {"spearman": spearman, "cosine": float(short.mean()), "paragraphs": float(long.mean())}

    def _embed(self, folder: Path) -> tuple[float, np.ndarray]:
        model = SentenceTransformer(str(folder), device="cpu")
        embeddings = model.encode(self.first + self.second + self.paragraphs, batch_size=64)
        embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        a, b = (embeddings[start : start + len(self.first)] for start in (0, len(self.first)))
        return 100 * float(spearmanr((a * b).sum(axis=1), self.scores).statistic), embeddings
