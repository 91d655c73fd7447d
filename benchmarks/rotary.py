"""A real encoder with rotary positions, without training and with it: minilm-rotary, judged on STS-B dev.

Every row keeps at most a fraction of the query/key parameters: Spearman correlation ×100 of cosine similarities with
the human scores, and mean cosine to the original's mean-pooled embeddings. Calibration, refinement and healing are on
STS-B train sentences. Rivals in the same run, as native models whose weights are replaced by what they keep:

- per-head SVD of W_Q^h (W_K^h)ᵀ as it is before the rotation, by weights and in the metric of the calibration. The
  rank-r projections are still rotated in all d dimensions, so a head stores its r dimensions and two r×d matrices;
- whole frequencies dropped by norm (MHA2MLA): every head keeps equally many, those of largest ‖q‖‖k‖ on real inputs;
- joint PCA of every frequency over the heads (TransMLA's RoRoPE), of queries and of keys: one real rotation of the
  heads for each, ranks dealt out to the frequencies by energy.

Would it help to treat the slowest frequencies, which hardly rotate within the window, as not rotated at all? However
that is done, they can at best be exact. So cp at half is measured with the slowest frequencies made exact at no cost,
and beside it cp with as many parameters as that takes if they are simply kept whole.

    python benchmarks/rotary.py            # everything
    python benchmarks/rotary.py --quick    # without refinement and healing

Writes results/rotary.json and .md. Rows are kept as they finish, and a run that was stopped goes on. About 40 minutes
on two cores.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers
from common import kept, machine, markdown, shared_data, stsb, write
from judge import stsb_sentences
from scipy.stats import spearmanr
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

import collab
from collab.conversion.convert import install
from collab.decomposition import HeadTensor, Whitening
from collab.decomposition.rotary_factors import RotaryFactors, as_complex, as_real, by_frequency
from collab.models.layers import attention_layers, parameters
from collab.reparametrization.layer import factors_of
from collab.reparametrization.model import LayerProblems

FRACTIONS = (0.75, 0.5, 1 / 3)
FORMS = ("cp", "tucker", "concat")
STEPS = 300
EXACT_WHEN_SLOW = "exact when slow"
SLOW = {"512 tokens": (15,), "64 tokens": (12, 13, 14, 15)}
"""Frequencies θ with θ × window below 0.1, by window: the model's own, and one of two or three sentences."""
RIVALS = ("per-head SVD, weights", "per-head SVD, calibrated", "frequencies by norm", "joint PCA by frequency")
Heads = tuple[Tensor, Tensor]


class Bench:
    """The original, its calibration and its embeddings of STS-B dev."""

    def __init__(self) -> None:
        folder = shared_data() / "checkpoints" / "minilm-rotary"
        self.original: PreTrainedModel = AutoModel.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.rows = stsb_sentences()
        self.calibration = collab.calibrate(collab.Checkpoint(self.original, self.tokenizer), self.rows[:1024])
        self.first, self.second, self.scores = stsb("dev")
        self.embeddings = self._embed(self.original)
        self.spearman = self._spearman(self.embeddings)

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """Spearman correlation ×100, and the mean cosine to the original's embeddings."""
        embeddings = self._embed(model)
        cosine = float((embeddings * self.embeddings).sum(axis=1).mean())
        return {"spearman": self._spearman(embeddings), "cosine": cosine}

    def _spearman(self, embeddings: np.ndarray) -> float:
        first, second = np.split(embeddings, 2)
        return 100 * float(spearmanr((first * second).sum(axis=1), self.scores).statistic)

    @torch.no_grad()
    def _embed(self, model: PreTrainedModel) -> np.ndarray:
        model.eval()
        texts = self.first + self.second
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        embeddings = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), 64):
            places = order[start : start + 64]
            batch = self.tokenizer(
                [texts[place] for place in places], padding=True, truncation=True, return_tensors="pt"
            )
            mask = batch["attention_mask"]
            states = model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
            pooled = (states * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
            embeddings[places] = torch.nn.functional.normalize(pooled, dim=-1).numpy()
        return embeddings

    def convert(self, form: str, fraction: float, refine: Any) -> collab.Checkpoint:
        """One conversion."""
        config = collab.ConversionConfig(form=form, params=fraction, compare=False, refine=refine)
        return collab.convert(self.original, config, calibration=self.calibration)

    def conversion(self, form: str, fraction: float, refine: Any = "none") -> dict[str, Any]:
        """One conversion, measured."""
        start, cpu = time.perf_counter(), time.process_time()
        conversion = self.convert(form, fraction, refine)
        taken = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - start}
        layers = conversion.report.layers
        return {
            **self.measure(conversion.model),
            "query_key_ratio": conversion.report.query_key.ratio,
            "ranks": [layer.rank for layer in layers],
            "score_error": float(np.mean([layer.score_error for layer in layers])),
            "by_frequency": self._by_frequency(conversion.model),
        } | taken

    def _by_frequency(self, model: PreTrainedModel) -> list[float]:
        """Complex dimensions of every frequency, the mean over layers."""
        layers = [layer.module for layer in attention_layers(model)]
        count = layers[0].attention_head_size // 2
        counts = [[layer.frequencies.count(frequency) for frequency in range(count)] for layer in layers]
        return np.mean(counts, axis=0).tolist()

    def healed(self, form: str, fraction: float) -> dict[str, Any]:
        """One conversion, refined and healed."""
        start, cpu = time.perf_counter(), time.process_time()
        conversion = self.convert(form, fraction, "auto")
        model = conversion.model
        options = collab.HealOptions(run=collab.RunOptions(steps=STEPS))
        collab.heal(collab.Checkpoint(model, self.tokenizer), self.original, self.rows, options=options)
        taken = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - start}
        return self.measure(model) | taken | {"query_key_ratio": conversion.report.query_key.ratio}

    def exact_when_slow(self, slow: tuple[int, ...]) -> dict[str, Any]:
        """A cp conversion at half, of which some frequencies are exact; and one with as many parameters."""
        model = copy.deepcopy(self.original)
        problems = LayerProblems(self.original, None, torch.device("cpu"))
        converted = self.convert("cp", 0.5, "none").model
        for layer in attention_layers(converted):
            factors, tensor = factors_of(layer.module), problems[layer.name].tensor
            assert isinstance(factors, RotaryFactors)
            places = [place for place, frequency in enumerate(factors.frequencies) if frequency not in slow]
            native_query, native_key = (side[list(slow)] for side in by_frequency(tensor))  # (slow, D, H)
            own = torch.eye(tensor.num_heads, dtype=torch.complex128).expand(len(slow), -1, -1)
            query, key, mixing = (
                as_real(torch.cat([as_complex(shared.double())[:, places], *whole], dim=1))
                for shared, whole in (
                    (factors.query, native_query),
                    (factors.key, native_key),
                    (factors.mixing, own),
                )
            )
            frequencies = [factors.frequencies[place] for place in places]
            frequencies += [frequency for frequency in slow for _ in range(tensor.num_heads)]
            whole = replace(factors, query=query, key=key, mixing=mixing, frequencies=tuple(frequencies))
            install(model, layer.name, whole)
        ratio = parameters(model)["query_key"] / parameters(self.original)["query_key"]
        wider = self.convert("cp", ratio, "none")
        return {
            "at_half": self.measure(converted),
            "exact": self.measure(model),
            "query_key_ratio": ratio,
            "as_many": self.measure(wider.model) | {"query_key_ratio": wider.report.query_key.ratio},
        }

    def rival(self, name: str, fraction: float) -> dict[str, Any]:
        """One rival, measured."""
        method: Callable[..., tuple[Tensor, Tensor, int]] = {
            "per-head SVD, weights": _svd,
            "per-head SVD, calibrated": _svd,
            "frequencies by norm": _by_norm,
            "joint PCA by frequency": _joint_pca,
        }[name]
        moments = None if name.endswith("weights") else self.calibration.moments
        model = copy.deepcopy(self.original)
        problems = LayerProblems(self.original, moments, torch.device("cpu"))
        before = after = 0
        for layer, problem in problems.items():
            native: Any = model.get_submodule(layer)
            budget = fraction * (problem.tensor.query.numel() + problem.tensor.key.numel())
            with torch.no_grad():
                query, key, stored = method(problem, budget)
                for projection, columns in ((native.q_proj, query), (native.k_proj, key)):
                    projection.weight.copy_(columns[:-1].T)
                    projection.bias.copy_(columns[-1])
            before += problem.tensor.query.numel() + problem.tensor.key.numel()
            after += stored
        return self.measure(model) | {"query_key_ratio": after / before}


def _svd(problem: Any, budget: float) -> tuple[Tensor, Tensor, int]:
    """Every head's W_Q^h (W_K^h)ᵀ truncated to one rank, in the metric of the moments."""
    tensor: HeadTensor = problem.tensor
    width, heads, _ = tensor.shape
    price = 2 * heads * (width + tensor.head_dim)
    rank = int(budget // price)
    whitening = Whitening(problem._metric)
    small = whitening.whiten(tensor)
    query, key = tensor.query.clone(), tensor.key.clone()
    for h in range(heads):
        columns = slice(h * tensor.head_dim, (h + 1) * tensor.head_dim)
        left, right = (torch.linalg.qr(side[:, columns], mode="r").R for side in (small.query, small.key))
        u, _, vt = torch.linalg.svd(left @ right.mT)
        # What is left of each side, as a product with the d dimensions that are rotated.
        query[:, columns] = tensor.query[:, columns] @ torch.linalg.solve(left, u[:, :rank] @ (u[:, :rank].mT @ left))
        key[:, columns] = tensor.key[:, columns] @ torch.linalg.solve(right, vt[:rank].mT @ (vt[:rank] @ right))
    return query, key, rank * price


def _norms(problem: Any) -> Heads:
    """Root mean square of every complex query and key dimension on real inputs, (F, H) each."""
    moments = problem.moments
    return tuple(
        (side.conj() * (covariance.to(side.dtype) @ side)).sum(dim=1).real.clamp(min=0).sqrt()
        for side, covariance in zip(
            by_frequency(problem.tensor), (moments.query_covariance, moments.key_covariance), strict=True
        )
    )  # type: ignore[return-value]


def _by_norm(problem: Any, budget: float) -> tuple[Tensor, Tensor, int]:
    """The same number of frequencies for every head, by norm."""
    tensor: HeadTensor = problem.tensor
    width, heads, _ = tensor.shape
    number = int(budget // (4 * width * heads))
    query_norm, key_norm = _norms(problem)
    chosen = torch.zeros_like(query_norm).scatter_(0, (query_norm * key_norm).topk(number, dim=0).indices, 1.0)
    mask = torch.cat([chosen, chosen]).T.flatten()  # (K,)
    return tensor.query * mask, tensor.key * mask, number * 4 * width * heads


def _joint_pca(problem: Any, budget: float) -> tuple[Tensor, Tensor, int]:
    """Queries and keys of every frequency projected on their leading real combinations of heads."""
    tensor: HeadTensor = problem.tensor
    width, heads, _ = tensor.shape
    moments = problem.moments
    sides = []
    for side, covariance in zip(by_frequency(tensor), (moments.query_covariance, moments.key_covariance), strict=True):
        gram = (side.mH @ covariance.to(side.dtype) @ side).real  # (F, H, H)
        values, axes = torch.linalg.eigh(gram)
        sides.append((side, values.flip(-1).clamp(min=0), axes.flip(-1)))
    price = 4 * width + 2 * heads
    pairs = int(budget // price)
    energy = torch.stack([values / values.sum() for _, values, _ in sides]).sum(dim=0)  # (F, H)
    kept_axes = torch.zeros_like(energy)
    kept_axes.view(-1)[energy.flatten().topk(pairs).indices] = 1.0
    query, key = (_real(side @ ((axes * kept_axes.unsqueeze(1)) @ axes.mT).to(side.dtype)) for side, _, axes in sides)
    return query, key, pairs * price


def _real(columns: Tensor) -> Tensor:
    """Complex columns (F, D, H) as the heads' real ones, (D, K)."""
    by_head = columns.permute(1, 2, 0)  # (D, H, F)
    return torch.cat([by_head.real, by_head.imag], dim=-1).flatten(1)


def tasks(quick: bool) -> Iterator[tuple[dict[str, Any], Callable[[Bench], dict[str, Any]]]]:
    """What is run: a setting, and how."""
    for fraction in FRACTIONS:
        for form in FORMS:
            yield _task(form, fraction, "untrained", lambda bench, form, part: bench.conversion(form, part))
        for name in RIVALS:
            yield _task(name, fraction, "untrained", lambda bench, name, part: bench.rival(name, part))
    for window, slow in SLOW.items():
        setting = {"what": EXACT_WHEN_SLOW, "params": 0.5, "training": window}
        yield setting, lambda bench, slow=slow: bench.exact_when_slow(slow)
    if quick:
        return
    for form in FORMS:
        for fraction in FRACTIONS[1:]:
            yield _task(form, fraction, "refined", lambda bench, form, part: bench.conversion(form, part, "auto"))
        for fraction in FRACTIONS[1:]:
            yield _task(form, fraction, "healed", lambda bench, form, part: bench.healed(form, part))


def _task(
    name: str, fraction: float, training: str, run: Callable[[Bench, str, float], dict[str, Any]]
) -> tuple[dict[str, Any], Callable[[Bench], dict[str, Any]]]:
    return {"what": name, "params": fraction, "training": training}, lambda bench: run(bench, name, fraction)


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    transformers.logging.disable_progress_bar()
    done = kept("rotary").get("rows", [])
    bench = Bench()
    for setting, run in tasks(quick):
        if any(all(row[name] == value for name, value in setting.items()) for row in done):
            continue
        done.append(setting | run(bench))
        print({name: value for name, value in done[-1].items() if name != "by_frequency"}, flush=True)
        result = {"machine": machine(), "original_spearman": bench.spearman, "rows": done}
        write("rotary", result, table(result))


def table(result: dict[str, Any]) -> str:
    """At each fraction without training, then with it, then where cp spends its dimensions."""
    parts = [f"Original: Spearman {result['original_spearman']:.2f}."]
    for fraction in FRACTIONS:
        cells = [
            [
                row["what"],
                row["training"],
                f"{row['query_key_ratio']:.3f}",
                f"{row['spearman']:.2f}",
                f"{row['cosine']:.4f}",
                f"{row['cpu_seconds']:.0f}" if "cpu_seconds" in row else "",
            ]
            for row in result["rows"]
            if row["params"] == fraction and row["what"] != EXACT_WHEN_SLOW
        ]
        headings = ["", "training", "query/key left", "Spearman", "cosine", "CPU s"]
        parts += [f"### {fraction:.0%} of the query/key parameters", markdown(headings, cells)]
    cells = [
        [f"{row['params']:.0%}", *(f"{size:.1f}" for size in row["by_frequency"])]
        for row in result["rows"]
        if row["what"] == "cp" and row["training"] == "untrained"
    ]
    if cells:
        headings = ["cp", *(str(frequency) for frequency in range(len(cells[0]) - 1))]
        parts += ["### Complex dimensions of each frequency, of 12; mean of the layers", markdown(headings, cells)]
    bounds = [row for row in result["rows"] if row["what"] == EXACT_WHEN_SLOW]
    if bounds:
        cells = [
            [
                f"{row['training']}: {len(SLOW[row['training']])} of 16",
                f"{row['query_key_ratio']:.3f}",
                *(f"{row[name]['cosine']:.4f}" for name in ("at_half", "exact", "as_many")),
            ]
            for row in bounds
        ]
        headings = ["window: slow frequencies", "query/key left if they are kept whole"]
        headings += ["cosine, cp at half", "with the slow ones exact", "cp with as many parameters"]
        parts += ["### Slow frequencies", markdown(headings, cells)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
