"""Variants of healing at equal CPU seconds: optimizers, batches, objectives, rows, widths, starting points.

The demo checkpoint at half of its layers' arithmetic, compressed on four kinds of text (STS-B, SST-2, WikiText-2,
Multi30k) and healed on the same for so many CPU seconds, is judged on these and on two that it has never seen,
questions and dialogue. The learning rate rises over a tenth of the time and falls linearly to zero. With --steps,
variants whose steps cost the same are compared whatever else the machine does.

    OMP_NUM_THREADS=1 python benchmarks/healing_variants.py [--seconds 150] [--variant "Adam, 32 rows"]

Writes results/healing_variants.json and .md; rows are kept as they finish.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import demo_folder, kept, machine, markdown, my_turn, write
from kinds import KINDS, Judge, made, texts
from torch import Tensor, nn
from transformers import AutoModel

import collab
from collab.compression.compressions import Compressions
from collab.data.lengths import with_fragments
from collab.progress import no_progress
from collab.training.muon import input_scales

WORK = Path(__file__).parent / "work" / "kinds"
HEALED_ON = KINDS[:4]
PER_KIND = 12_000

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
POLAR_EXPRESS = ((8.2872120, -23.5958865, 17.3003873), (4.1070591, -2.9478499, 0.5448431))
"""Coefficients of x, x³ and x⁵: the same in every iteration, and the best two in turn (Amsel et al. 2025)."""

_MUON: dict[str, Any] = {
    "by_tokens": True,
    "fragments": 0.5,
    "optimizer": "muon",
    "rows": 128,
    "rate": 2e-3,
    "polynomials": (NEWTON_SCHULZ,) * 3,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "Adam, 32 rows, float32": {"bfloat16": False},
    "Adam, 32 rows": {},
    "Adam, 16 rows, 3e-4, refitted first": {"rows": 16, "rate": 3e-4, "refitted": True},
    "Adam, 32 rows, refitted first": {"refitted": True},
    "Adam, 32 rows, 1e-3": {"rate": 1e-3, "beta": 0.98},
    "Adam, 64 rows, 1e-3": {"rows": 64, "rate": 1e-3},
    "Adam, 64 rows, 2e-3": {"rows": 64, "rate": 2e-3},
    "Adam, 32 rows, last three states": {"last": 3},
    "Adam, 64 rows, embeddings too": {"rows": 64, "rate": 1e-3, "embedding": 1.0},
    "Adam, 64 rows, 15 % random words in half of them": {"rows": 64, "rate": 1e-3, "replaced": 0.15},
    "Muon, 64 rows, 5e-4": {"optimizer": "muon", "rows": 64},
    "Muon, 64 rows, 1e-3": {"optimizer": "muon", "rows": 64, "rate": 1e-3},
    "Muon, 64 rows, 2e-3": {"optimizer": "muon", "rows": 64, "rate": 2e-3},
    "Muon, 64 rows, 4e-3": {"optimizer": "muon", "rows": 64, "rate": 4e-3},
    "Muon, 40 rows, 1.2e-3": {"optimizer": "muon", "rows": 40, "rate": 1.2e-3, "beta": 0.98},
    "SOAP, 64 rows, 1e-3": {"optimizer": "soap", "rows": 64, "rate": 1e-3, "beta": 0.99},
    "mixed by tokens": {"by_tokens": True},
    "fragments": {"by_tokens": True, "fragments": 0.5},
    "fragments, means of all states too": {"by_tokens": True, "fragments": 0.5, "means": 0.3},
    "fragments, rows weigh alike": {"by_tokens": True, "fragments": 0.5, "alike": 1.0},
    "fragments, rows weigh by the root of their length": {"by_tokens": True, "fragments": 0.5, "alike": 0.5},
    "fragments, hard rows weigh more": {"by_tokens": True, "fragments": 0.5, "hard": 1.0},
    "fragments, some joined": {"by_tokens": True, "fragments": 0.5, "joined": 0.5},
    "fragments of three quarters of the rows": {"by_tokens": True, "fragments": 0.75},
    "fragments, the rate falls in the last third": {"by_tokens": True, "fragments": 0.5, "until": 0.67},
    "fragments, weights averaged over the last fifth": {"by_tokens": True, "fragments": 0.5, "averaged": 0.2},
    "fragments, drawn to the closed form": {"by_tokens": True, "fragments": 0.5, "closeness": 3.0},
    "fragments, layers alone for the first 30 %": {"by_tokens": True, "fragments": 0.5, "alone": 0.3},
    "fragments, widths of the worst source": {"by_tokens": True, "fragments": 0.5, "calibrated": ("SST-2",)},
    "fragments, 1e-3": {"by_tokens": True, "fragments": 0.5, "rate": 1e-3},
    "fragments, rows of like length among 8,192": {"by_tokens": True, "fragments": 0.5, "pool": 256},
    "fragments, second moments over 20 steps": {"by_tokens": True, "fragments": 0.5, "beta": 0.95},
    "fragments, second moments over 20 steps, 1e-3": {"by_tokens": True, "fragments": 0.5, "beta": 0.95, "rate": 1e-3},
    "fragments, 16 rows": {"by_tokens": True, "fragments": 0.5, "rows": 16},
    "fragments, every batch twice": {"by_tokens": True, "fragments": 0.5, "twice": True},
    "fragments, Muon, 64 rows, 1e-3": _MUON | {"rows": 64, "rate": 1e-3, "polynomials": (NEWTON_SCHULZ,) * 5},
    "fragments, Muon, 64 rows, 1e-3, 3 iterations": _MUON | {"rows": 64, "rate": 1e-3},
    "fragments, Muon, 128 rows, 1.5e-3, 3 iterations": _MUON | {"rate": 1.5e-3},
    "fragments, Muon, 128 rows, 2e-3, 3 iterations": _MUON,
    "fragments, Muon, 128 rows, 2e-3, 2 iterations of Polar Express": _MUON | {"polynomials": POLAR_EXPRESS},
    "fragments, Muon, 128 rows, 2e-3, 3 iterations every second step": _MUON | {"every": 2},
    "fragments, Muon, 64 rows, 1.4e-3, 3 iterations every fourth step": _MUON
    | {"rows": 64, "rate": 1.4e-3, "every": 4},
    "fragments, Muon, 256 rows, 2e-3, 3 iterations": _MUON | {"rows": 256},
    "fragments, Muon, 256 rows, 3e-3, 3 iterations": _MUON | {"rows": 256, "rate": 3e-3},
    "fragments, Muon, 128 rows, 2e-3, inputs scaled": _MUON | {"scaled": True},
    "fragments, states after attention too": {"by_tokens": True, "fragments": 0.5, "after_attention": True},
    "fragments, embeddings trained too": {"by_tokens": True, "fragments": 0.5, "embeddings": True},
    "fragments, wider values": {"by_tokens": True, "fragments": 0.5, "widths": "wider values"},
    "fragments, as many neurons everywhere": {"by_tokens": True, "fragments": 0.5, "widths": "as many neurons"},
    "fragments, narrower last values": {"by_tokens": True, "fragments": 0.5, "widths": "narrower last values"},
}
WIDTHS: dict[str, tuple[Sequence[int], Sequence[int], Sequence[int]]] = {
    "wider values": ((20, 12, 8, 8, 8, 8), (20, 24, 24, 24, 24, 32), (656, 592, 560, 624, 928, 960)),
    "as many neurons": ((20, 12, 8, 8, 8, 8), (12, 16, 16, 16, 16, 32), (800,) * 6),
    "narrower last values": ((20, 12, 10, 10, 8, 8), (16, 16, 16, 16, 16, 24), (784, 768, 768, 784, 880, 880)),
}
"""Widths at half of the arithmetic other than those of `collab compress`: of a head's queries and keys, of its values,
and neurons, by layer."""

DEFAULTS: dict[str, Any] = {
    "optimizer": "adam",
    "rows": 32,
    "rate": 5e-4,
    "beta": 0.999,
    "bfloat16": True,
    "last": 0,
    "embedding": 0.0,
    "means": 0.0,
    "embeddings": False,
    "replaced": 0.0,
    "by_tokens": False,
    "fragments": 0.0,
    "joined": 0.0,
    "pool": 32,
    "alike": 0.0,
    "hard": 0.0,
    "until": 0.1,
    "averaged": 0.0,
    "closeness": 0.0,
    "alone": 0.0,
    "twice": False,
    "after_attention": False,
    "polynomials": (NEWTON_SCHULZ,) * 5,
    "every": 1,
    "scaled": False,
    "calibrated": HEALED_ON,
    "refitted": False,
    "widths": "",
}


class Muon:
    """Orthogonalized momentum for matrices (Jordan et al. 2024).

    Args:
        weights: matrices.
        polynomials: of each iteration.
        every: steps that a matrix's direction is kept; the matrices change theirs in turn.
        scales: of the inputs of matrices; empty for none.
        momentum: part of the sum of gradients that is left after a step.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        polynomials: Sequence[Sequence[float]],
        every: int,
        scales: Mapping[Tensor, Tensor],
        momentum: float = 0.9,
    ) -> None:
        self._weights, self._polynomials, self._every, self._momentum = weights, polynomials, every, momentum
        self._scales = scales
        self._sums = [torch.zeros_like(weight) for weight in weights]
        self._changes: list[Tensor | None] = [None] * len(weights)
        self._steps = 0

    def step(self, rate: float) -> None:
        """One step."""
        self._steps += 1
        for number, (weight, total) in enumerate(zip(self._weights, self._sums, strict=True)):
            total.mul_(self._momentum).add_(weight.grad)
            change = self._changes[number]
            if change is None or (self._steps + number) % self._every == 0:
                change = weight.grad + self._momentum * total
                if weight in self._scales:
                    scale = self._scales[weight]
                    change = _orthogonal(change @ scale, self._polynomials) @ scale
                else:
                    change = _orthogonal(change, self._polynomials)
                self._changes[number] = change
            weight.data.add_(change, alpha=-rate * 0.2 * max(weight.shape) ** 0.5)


def scales(model: Any, given: Iterator[tuple[Tensor, Tensor]]) -> dict[Tensor, Tensor]:
    """`input_scales` of the first batches, all of them as matrices."""
    first = itertools.islice(given, 4)
    of_inputs = input_scales(model, ({"input_ids": ids, "attention_mask": mask} for ids, mask in first))
    return {weight: scale if scale.ndim == 2 else scale.diag() for weight, scale in of_inputs.items()}


def _orthogonal(matrix: Tensor, polynomials: Sequence[Sequence[float]]) -> Tensor:
    """About the closest matrix with orthonormal rows or columns, by Newton-Schulz iterations."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide.bfloat16() / (wide.norm() + 1e-7)
    for first, third, fifth in polynomials:
        square = wide @ wide.T
        wide = first * wide + (third * square + fifth * square @ square) @ wide
    return (wide.T if matrix.shape[0] > matrix.shape[1] else wide).float()


class Soap:
    """Adam in the eigenvectors of the gradients' products (Vyas et al. 2024), of sides up to 400."""

    def __init__(self, weights: Sequence[nn.Parameter], beta: float, every: int = 20) -> None:
        self._weights, self._beta, self._every, self._steps = weights, beta, every, 0
        self._mean = [torch.zeros_like(weight) for weight in weights]
        self._square = [torch.zeros_like(weight) for weight in weights]
        self._sides: list[list[Tensor | None]] = [
            [torch.zeros(size, size) if size <= 400 else None for size in weight.shape] for weight in weights
        ]
        self._bases: list[list[Tensor | None]] = [[None, None] for _ in weights]

    def step(self, rate: float) -> None:
        """One step; the first only finds the eigenvectors."""
        self._steps += 1
        for number, weight in enumerate(self._weights):
            gradient, bases, sides = weight.grad, self._bases[number], self._sides[number]
            assert gradient is not None
            for axis, side in enumerate(sides):
                if side is not None:
                    side.lerp_(gradient @ gradient.T if axis == 0 else gradient.T @ gradient, 0.05)
                    if self._steps == 1:
                        bases[axis] = torch.linalg.eigh(side)[1]
                    elif self._steps % self._every == 0:
                        bases[axis] = torch.linalg.qr(side @ bases[axis])[0]
            if self._steps == 1:
                continue
            mean, square, steps = self._mean[number], self._square[number], self._steps - 1
            mean.lerp_(gradient, 0.1)
            square.lerp_(_rotated(gradient, bases).square(), 1 - self._beta)
            scale = (square / (1 - self._beta**steps)).sqrt() + 1e-8
            change = _rotated(mean, bases) / (1 - 0.9**steps) / scale
            weight.data.add_(_rotated(change, [None if each is None else each.T for each in bases]), alpha=-rate)


def _rotated(matrix: Tensor, bases: Sequence[Tensor | None]) -> Tensor:
    left, right = bases
    matrix = matrix if left is None else left.T @ matrix
    return matrix if right is None else matrix @ right


def relative(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared error relative to the teacher's spread."""
    return (student - teacher).square().sum() / (teacher - teacher.mean(0)).square().sum()


def weighted(student: Tensor, teacher: Tensor, seen: Tensor, how: dict[str, Any]) -> Tensor:
    """`relative`, of rows that weigh alike whatever their length, or by how far they are from the teacher."""
    student, teacher = student.float(), teacher.float()
    errors = ((student - teacher).square().sum(-1) * seen).sum(1)  # (B,)
    lengths = seen.sum(1)
    spread = (teacher[seen] - teacher[seen].mean(0)).square().sum(1).mean()
    weights = lengths.float() ** -how["alike"]
    if how["hard"]:
        hardness = (errors / lengths).detach()
        weights = weights * (hardness / hardness.mean()) ** how["hard"]
    return (weights * errors).sum() / (weights * lengths).sum() / spread


def pooled(states: Tensor, mask: Tensor) -> Tensor:
    """Normalized means over the tokens, (B, D)."""
    return nn.functional.normalize(_means(states, mask), dim=-1)


def _means(states: Tensor, mask: Tensor) -> Tensor:
    weight = mask.unsqueeze(-1).float()
    return (states.float() * weight).sum(1) / weight.sum(1)  # (B, D)


def batches(tokenizer: Any, rows: Sequence[list[int]], size: int, replaced: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Padded batches of rows of similar length, in random order, without end."""
    generator = np.random.default_rng(0)
    words = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
    lengths = np.array([len(row) for row in rows])
    while True:
        order = generator.permutation(len(rows))
        for start in range(0, len(order) - size, size * 32):
            part = order[start : start + size * 32]
            part = part[np.argsort(lengths[part], kind="stable")]
            chunks = [part[first : first + size] for first in range(0, len(part) - size + 1, size)]
            for number in generator.permutation(len(chunks)):
                chosen = [list(rows[row]) for row in chunks[number]]
                for row in chosen if replaced else ():
                    if generator.random() < 0.5:
                        for place in range(1, len(row) - 1):
                            if generator.random() < replaced:
                                row[place] = int(generator.choice(words))
                padded = tokenizer.pad({"input_ids": chosen}, return_tensors="pt")
                yield padded["input_ids"], padded["attention_mask"]


def by_tokens(
    tokenizer: Any, kinds: dict[str, list[dict[str, list[int]]]], how: dict[str, Any]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Padded batches of rows of similar length, of all kinds evenly by tokens, some rows cut to fragments."""
    size, fragments, pool = how["rows"], how["fragments"], how["pool"]
    generator = np.random.default_rng(0)
    inverse = np.array([len(rows) / sum(len(row["input_ids"]) for row in rows) for rows in kinds.values()])
    streams = [_endless(rows, generator) for rows in kinds.values()]
    for seed in itertools.count():
        drawn = [next(streams[kind]) for kind in generator.choice(len(kinds), size * pool, p=inverse / inverse.sum())]
        cut = [row["input_ids"] for row in with_fragments(drawn, fragments, tokenizer, seed)]
        if how["joined"]:
            whole = [len(row["input_ids"]) for row in drawn]
            short = [n for n, row in enumerate(cut) if len(row) < whole[n]]
            for n in short:
                if generator.random() < how["joined"]:
                    for m in generator.choice(short, int(generator.integers(1, 4))):
                        cut[n] = [*cut[n][:-1], *cut[m][1:]]
        cut.sort(key=len)
        for number in generator.permutation(pool):
            padded = tokenizer.pad({"input_ids": cut[number * size : (number + 1) * size]}, return_tensors="pt")
            yield padded["input_ids"], padded["attention_mask"]


def _endless(rows: Sequence[Any], generator: np.random.Generator) -> Iterator[Any]:
    while True:
        yield from (rows[number] for number in generator.permutation(len(rows)))


def heal(
    model: Any,
    teacher: Any,
    given_batches: Iterator[tuple[Tensor, Tensor]],
    seconds: float,
    how: dict[str, Any],
    limit: int = 0,
) -> int:
    """Heals for so many CPU seconds; returns the number of steps."""
    torch.manual_seed(0)
    parts = ("encoder.", "embeddings.") if how["embeddings"] else ("encoder.",)
    trained = [weight for name, weight in model.named_parameters() if name.startswith(parts)]
    for weight in model.parameters():
        weight.requires_grad_(False)
    for weight in trained:
        weight.requires_grad_(True)
    matrices = [weight for weight in trained if weight.ndim == 2] if how["optimizer"] != "adam" else []
    others = [weight for weight in trained if not any(weight is matrix for matrix in matrices)]
    adam = torch.optim.Adam(others, betas=(0.9, how["beta"]))
    second: Callable[[float], None] = lambda rate: None  # noqa: E731
    if how["optimizer"] == "muon":
        of_inputs = scales(model, given_batches) if how["scaled"] else {}
        second = Muon(matrices, how["polynomials"], how["every"], of_inputs).step
    elif how["optimizer"] == "soap":
        second = Soap(matrices, how["beta"]).step
    start, steps = time.process_time(), 0
    initial = [weight.detach().clone() for weight in trained]
    total, counted = [torch.zeros_like(weight) for weight in trained], 0
    for given, expected in taught(teacher, given_batches, how):
        done = steps / limit if limit else (time.process_time() - start) / seconds
        if done >= 1:
            break
        alone = given_states(model, expected) if done < how["alone"] else contextlib.nullcontext()
        with torch.autocast("cpu", torch.bfloat16, enabled=how["bfloat16"]), alone:
            actual = states(model, given, how)
        mask = given["attention_mask"]
        seen = mask.bool()
        pairs = list(zip(actual, expected, strict=True))[1:][-how["last"] :]
        if how["alike"] or how["hard"]:
            loss = torch.stack([weighted(left, right, seen, how) for left, right in pairs]).mean()
        else:
            loss = torch.stack([relative(left[seen].float(), right[seen].float()) for left, right in pairs]).mean()
        if how["embedding"]:
            loss = loss + how["embedding"] * relative(pooled(actual[-1], mask), pooled(expected[-1], mask))
        if how["means"]:
            of_rows = [relative(*(_means(states, mask) for states in pair)) for pair in pairs]
            loss = loss + how["means"] * torch.stack(of_rows).mean()
        loss.backward()
        least = 0.3 if how["averaged"] and done > 0.1 else 1e-3
        rate = how["rate"] * max(least, min(1.0, done / 0.1, (1 - done) / (1 - how["until"])))
        adam.param_groups[0]["lr"] = rate
        adam.step()
        second(rate)
        for weight, before in zip(trained, initial, strict=True):
            weight.data.lerp_(before, rate * how["closeness"])
            weight.grad = None
        if done >= 1 - how["averaged"]:
            counted += 1
            for sums, weight in zip(total, trained, strict=True):
                sums += weight.detach()
        steps += 1
    for weight, sums in zip(trained, total, strict=True):
        if counted:
            weight.data.copy_(sums / counted)
    return steps


def states(model: Any, given: dict[str, Any], how: dict[str, Any]) -> list[Tensor]:
    """The hidden states, with ``after_attention`` also those between attention and feed-forward layers."""
    between: list[Tensor] = []
    with contextlib.ExitStack() as hooks:
        for layer in model.encoder.layer if how["after_attention"] else ():
            hook = layer.attention.output.register_forward_hook(lambda module, args, output: between.append(output))
            hooks.callback(hook.remove)
        return [*model(**given).hidden_states, *between]


def taught(
    teacher: Any, given_batches: Iterator[tuple[Tensor, Tensor]], how: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], Sequence[Tensor]]]:
    """Inputs with the teacher's states; 32 of them a second time, in another order, before the next 32."""
    generator = np.random.default_rng(1)
    while True:
        kept_batches = []
        for ids, mask in itertools.islice(given_batches, 32):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=how["bfloat16"]):
                given = {"input_ids": ids, "attention_mask": mask, "output_hidden_states": True}
                batch = given, states(teacher, given, how)
            yield batch
            kept_batches += [batch] * how["twice"]
        yield from (kept_batches[number] for number in generator.permutation(len(kept_batches)))


@contextlib.contextmanager
def given_states(model: Any, states: Sequence[Tensor]) -> Iterator[None]:
    """Gives every layer the original's states instead of those of the layer before it: each is healed alone."""
    with contextlib.ExitStack() as hooks:
        for layer, entering in zip(model.encoder.layer, states[:-1], strict=True):
            hook = layer.register_forward_pre_hook(lambda module, args, entering=entering: (entering, *args[1:]))
            hooks.callback(hook.remove)
        yield


def start(how: dict[str, Any]) -> Any:
    """The compressed model to heal."""
    own = () if how["calibrated"] == HEALED_ON else how["calibrated"]
    folder = WORK / "-".join(["start", *["refitted"] * how["refitted"], *how["widths"].split(), *own])
    if how["widths"] and not folder.is_dir():
        known = texts()
        original = collab.load(str(demo_folder()))
        mixture = collab.Mixture({kind: known[kind][0] for kind in HEALED_ON})
        moments = collab.calibrate(original, mixture, options=collab.CalibrationOptions(2048, 128))
        config = collab.CompressionConfig(flops=0.5, healed=True)
        candidates = Compressions(original.model, config, moments, no_progress).candidates
        heads = original.model.config.num_attention_heads
        by_layer = zip(*WIDTHS[how["widths"]], strict=True)
        widths = [
            {"queries-keys": heads * queries, "values": values, "feed-forward": neurons}
            for queries, values, neurons in by_layer
        ]
        candidates.build(tuple(widths)).save_pretrained(folder)
    elif not folder.is_dir():
        made("half", folder, how["calibrated"], steps=0, healed=not how["refitted"], calibrated=2048)
    return collab.load(str(folder)).model


def main() -> None:
    """Runs the variants that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--steps", type=int, default=0, help="so many steps, whatever their time")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS))
    chosen = parser.parse_args()
    judge = Judge()
    known = texts()
    encoded = {
        kind: judge.tokenizer(known[kind][0][:PER_KIND], truncation=True, max_length=128)["input_ids"]
        for kind in HEALED_ON
    }
    every_row = [ids for rows in encoded.values() for ids in rows]
    by_kind = {kind: [{"input_ids": ids} for ids in rows] for kind, rows in encoded.items()}
    teacher = AutoModel.from_pretrained(demo_folder()).eval()
    for name in chosen.variant or VARIANTS:
        key = {"variant": name, "seconds": None if chosen.steps else chosen.seconds}
        key |= {"steps": chosen.steps} if chosen.steps else {}
        if any(key.items() <= row.items() for row in kept("healing_variants").get("rows", [])):
            continue
        how = DEFAULTS | VARIANTS[name]
        if how["by_tokens"]:
            given = by_tokens(judge.tokenizer, by_kind, how)
        else:
            given = batches(judge.tokenizer, every_row, how["rows"], how["replaced"])
        model = start(how)
        steps = heal(model, teacher, given, chosen.seconds, how, chosen.steps)
        row = key | {"steps": steps} | judge.measure(model.eval())
        with my_turn("healing_variants"):
            every = [*kept("healing_variants").get("rows", []), row]
            write("healing_variants", {"machine": machine(), "rows": every}, table(every))


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each variant; without CPU seconds those of which the number of steps was given."""
    cells = [
        [
            row["variant"],
            f"{row['seconds']:.0f}" if row["seconds"] else "",
            str(row["steps"]),
            f"{row['spearman']:.2f}",
            *(f"{row[kind]:.4f}" for kind in KINDS),
        ]
        for row in rows
    ]
    return markdown(["variant", "CPU s", "steps", "Spearman", *KINDS], cells)


if __name__ == "__main__":
    main()
