"""What the time of a model is measured at: what its user does with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..evaluation.timing import rounds_in_turn
from ..models.inputs import (
    check_forced,
    decoder_vocabulary,
    has_decoder,
    longest_input,
    longest_target,
    random_inputs,
    random_sources,
)
from ..models.states import evaluating
from ..processes import from_main
from .options import CompressionConfig

_ROUNDS, _ROUNDS_OF_WRITING = 41, 11


@dataclass(frozen=True)
class Writing:
    """A model that reads rows and writes so many tokens, not fewer, with the beams that its generation config says."""

    model: Any
    new_tokens: int

    def __call__(self, **rows: Tensor) -> Tensor:
        """The tokens, (B, T)."""
        return self.model.generate(**rows, **exactly(self.model, self.new_tokens), do_sample=False)


def exactly(model: PreTrainedModel, count: int) -> dict[str, int]:
    """Arguments of `generate` for writing so many tokens, and not fewer.

    The end is a token that the vocabulary lacks. To forbid one that it has (``min_new_tokens``) takes a twentieth of a
    small model's step, which no user spends.
    """
    return {"max_new_tokens": count, "eos_token_id": decoder_vocabulary(model)}


def feasible(config: CompressionConfig, model: PreTrainedModel) -> CompressionConfig:
    """The config with as many tokens to read and to write as the model takes, if they are to be timed."""
    if config.speedup is None:
        return config
    length, new_tokens = min(config.length, longest_input(model)), config.new_tokens
    if model.can_generate() and has_decoder(model):
        new_tokens = min(new_tokens, longest_target(model) - 1)
    elif model.can_generate():
        new_tokens = max(2, min(new_tokens, longest_input(model) - 1))
        length = max(1, min(length, longest_input(model) - new_tokens))
    return replace(config, length=length, new_tokens=new_tokens)


class Timed:
    """One pass over rows, or of a model that writes, reading them and writing, as its generation config says.

    Args:
        native: the original.
        config: `length` and `rows` of the batch, and `new_tokens` to write, as `feasible` gives them.
    """

    def __init__(self, native: PreTrainedModel, config: CompressionConfig) -> None:
        self.native = native
        self.writes = native.can_generate()
        if self.writes:
            check_forced(native)
        self._new = config.new_tokens
        self.rows = (random_sources if self.writes else random_inputs)(native, config.rows, config.length)

    def call(self, model: PreTrainedModel, new_tokens: int | None = None) -> Callable[..., Any]:
        """What is called with the rows as arguments: a model, or its writing.

        Args:
            model: the original or a compressed model.
            new_tokens: number of tokens to write; None for that of the config.
        """
        return Writing(model, self._new if new_tokens is None else new_tokens) if self.writes else model

    def times_as_fast(self, model: PreTrainedModel) -> float:
        """How many times as fast as the original a model is: both run in turn, each of them as often first."""
        before, after = self._medians(model, None)
        return before / after

    def reading_and_step(self, model: PreTrainedModel) -> tuple[float, float] | None:
        """How many times as fast a model reads rows and writes a first token, and writes each further one.

        None for a model that does not write.
        """
        if not self.writes or self._new < 2:
            return None
        first, whole = self._medians(model, 1), self._medians(model, None)
        steps = [max(each - own, 1e-9) for each, own in zip(whole, first, strict=True)]
        return first[0] / first[1], steps[0] / steps[1]

    def seconds(
        self, models: Sequence[PreTrainedModel], rounds: int, new_tokens: int | None = None
    ) -> list[tuple[float, ...]]:
        """The seconds of models by round, which run in turn in evaluation mode, measured by the main process.

        Args:
            models: the original or compressed models.
            rounds: number of rounds.
            new_tokens: as in `call`.
        """
        runs = [(self.call(model, new_tokens), [self.rows]) for model in models]
        with evaluating(*models):
            return list(zip(*from_main(lambda: rounds_in_turn(runs, rounds)), strict=True))

    def _medians(self, model: PreTrainedModel, new_tokens: int | None) -> tuple[float, float]:
        """Median seconds of the original and of a model."""
        rounds = _ROUNDS_OF_WRITING if self.writes else _ROUNDS
        before, after = map(median, self.seconds((self.native, model), rounds, new_tokens))
        return before, after
