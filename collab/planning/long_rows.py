"""Settings of attention in long rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ..errors import ConfigurationError
from .budget import check_fraction

Attention = Literal["dense", "local", "summaries"]
PositionsRule = Literal["keep", "copy", "interpolate"]


NOT_OFFERED = {
    "linear": "with a softmax in the window, features outside it, and training, it has more error than local attention "
    "with wider blocks has in half of the time",
    "lsh": "in a layer that was trained with a softmax its outputs are further from dense attention's than the mean of "
    "all outputs is, trained or not",
}
"""Kinds that benchmarks/long_rows.py measures, and what it says against them (docs/long-rows.md)."""


@dataclass(frozen=True)
class LongOptions:
    """Settings of attention in long rows.

    Attributes:
        attention: ``local`` (a block of tokens sees itself, the blocks beside it and the global tokens),
            ``summaries`` (and the rest of the row in groups, each by one key and one value) or ``dense`` (long rows are
            computed like short ones). In a decoder a token sees none behind it, the block before its own, and with
            summaries the blocks before that; the cache forgets the rest.
        block: number of tokens in a block.
        global_tokens: number of first tokens that see all tokens, and that all tokens see.
        summaries: what stands for a group with ``summaries``: ``mean:n``, the mean of n tokens, or ``stride:n``, the
            first of n. Not used by ``local``.
        dense_below: rows of fewer tokens are computed as before.
        dense_layers: numbers, from 0, of the attention layers that stay as they are at every length; ``auto`` for those
            whose outputs blocks change most on a text, within `dense_budget`.
        dense_budget: with ``auto``, how much of the arithmetic that attention takes in the longest row it may take at
            most, as a fraction.
        max_length: tokens of the longest row that the model will take; None for those that it takes already.
        positions: how positions beyond the model's become known: not at all (``keep``); by repeating the table of
            positions (``copy``), which leaves those of shorter rows as they are, or by stretching it
            (``interpolate``), which changes them. Rotary positions have no table: they go on (``copy``), or turn
            slower (``interpolate``).

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    attention: Attention = "local"
    block: int = 128
    global_tokens: int = 1
    summaries: str = "stride:16"
    dense_below: int = 1024
    dense_layers: tuple[int, ...] | Literal["auto"] = ()
    dense_budget: float = 0.5
    max_length: int | None = None
    positions: PositionsRule = "keep"

    def __post_init__(self) -> None:
        read_attention(self.attention)
        if self.positions not in get_args(PositionsRule):
            known = ", ".join(get_args(PositionsRule))
            raise ConfigurationError(f"Unknown positions {self.positions!r}; choose one of {known}.")
        for name, lowest in (("block", 1), ("global_tokens", 0), ("dense_below", 1), ("max_length", 1)):
            value = getattr(self, name)
            if value is None and name == "max_length":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ConfigurationError(f"{name} must be a whole number of at least {lowest}, not {value!r}.")
        if self.global_tokens >= self.dense_below:
            raise ConfigurationError(
                f"{self.global_tokens} global tokens are all of the shortest long row: dense_below (--dense-below) is "
                f"{self.dense_below}. Take fewer global tokens, or a higher dense_below."
            )
        check_fraction("dense_budget (--dense-budget)", self.dense_budget)
        self._check_dense_layers()
        self._check_summaries()

    def _check_dense_layers(self) -> None:
        if self.dense_layers == "auto":
            if self.attention == "dense":
                raise ConfigurationError(
                    "dense_layers='auto' (--dense-layers auto) chooses among layers in blocks: choose an attention "
                    "(--attention local, or summaries)."
                )
        elif any(isinstance(layer, bool) or not isinstance(layer, int) for layer in self.dense_layers):
            raise ConfigurationError(f"dense_layers must be numbers of layers, or 'auto', not {self.dense_layers!r}.")

    def _check_summaries(self) -> None:
        how, _, count = self.summaries.partition(":")
        if how not in ("mean", "stride") or not count.isdecimal() or int(count) < 2:
            raise ConfigurationError(f"summaries must be mean:n or stride:n with n from 2, not {self.summaries!r}.")
        if self.attention == "summaries" and self.block % int(count):
            raise ConfigurationError(
                f"A block of {self.block} tokens cannot be divided into groups of {count}: choose summaries "
                "(--summaries) with a number that divides the block (--block)."
            )

    @property
    def changes_nothing(self) -> bool:
        """Whether long rows are computed like short ones, and none are longer than before."""
        return self.attention == "dense" and self.positions == "keep"

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)


def read_attention(text: str) -> str:
    """Reads a kind of attention in long rows.

    Raises:
        ConfigurationError: if there is no such kind, or it is not offered.
    """
    known = ", ".join(get_args(Attention))
    if text in NOT_OFFERED:
        raise ConfigurationError(
            f"{text} attention is not offered: {NOT_OFFERED[text]} (docs/long-rows.md). Choose one of {known}."
        )
    if text not in get_args(Attention):
        raise ConfigurationError(f"Unknown attention {text!r}; choose one of {known}.")
    return text


def read_layers(text: str) -> tuple[int, ...] | Literal["auto"]:
    """Reads numbers of layers, such as ``1,4``, or ``auto``.

    Raises:
        ConfigurationError: if it is something else.
    """
    if text == "auto":
        return "auto"
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigurationError(f"{text!r} is not a list of layers, such as 1,4, and not auto.") from None
