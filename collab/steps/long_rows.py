"""Attention in long rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .step import Count, Json, Step, table


@dataclass(frozen=True)
class Lengthening(Step):
    """The step that has attention layers compute long rows in blocks.

    Attributes:
        settings: the `LongOptions`.
        layers: by name of an attention layer, whether it computes long rows in blocks.
        max_length: tokens of the longest row before and after; None if there is no limit.
        errors: by name of a layer, what blocks would change of its output, as a squared error relative to the variance,
            if the dense layers were chosen by it.
        causal: whether they are layers of a decoder, whose tokens see none behind them.
    """

    kind: ClassVar[str] = "lengthen"
    title: ClassVar[str] = "Long rows"

    settings: Json
    layers: dict[str, bool]
    max_length: Count | None
    errors: dict[str, float] | None = None
    causal: bool = False

    @property
    def _window(self) -> int:
        """The number of keys that a token of a long row sees without those of the rest, unless it is a global one."""
        return (2 if self.causal else 3) * self.settings["block"] + self.settings["global_tokens"]

    @property
    def extended(self) -> bool:
        """Whether rows may be longer than before."""
        return self.max_length is not None and self.max_length.after > self.max_length.before

    def summary(self) -> str:
        """What a token of a long row sees, and how many tokens a row may have."""
        if self.settings["attention"] == "dense":
            return f"Long rows are computed like short ones.{self._positions}"
        settings, some = self.settings, self.settings["global_tokens"]
        first = {0: "", 1: " and the first token"}.get(some, f" and the first {some} tokens")
        rest = ""
        if settings["attention"] == "summaries":
            how, _, count = settings["summaries"].partition(":")
            rest = f", and the rest in groups of {count}, each by its {'mean' if how == 'mean' else 'first token'}"
        many = f"{sum(self.layers.values())} of {len(self.layers)} attention layers compute in blocks"
        if self.causal:
            text = (
                f"In rows of {settings['dense_below']} tokens or more, {many}: the first {settings['dense_below'] - 1} "
                f"tokens see all before them, and each that follows those of its block of {settings['block']} up to "
                f"itself, those of the block before{first} ({self._window} tokens at most){rest}. While a text is "
                "written, the cache forgets what no token to come sees. "
            )
        else:
            text = (
                f"In rows of {settings['dense_below']} tokens or more, {many}: a token sees the {settings['block']} "
                f"of its block, those of the blocks beside it{first} ({self._window} tokens){rest}. "
            )
        if self.errors is not None and not all(self.layers.values()):
            text += "The dense ones are those whose outputs blocks would change most on long rows of the text. "
        if some and not self.causal:
            text += f"The first {'token sees' if some == 1 else f'{some} tokens see'} all. "
        stretched = self.extended and settings["positions"] == "interpolate"
        text += f"Shorter rows are computed as before{', but with the stretched positions' if stretched else ''}."
        return text + self._positions

    @property
    def _positions(self) -> str:
        if self.max_length is None or not self.extended:
            return ""
        how = {"copy": "repeated, or go on", "interpolate": "stretched"}[self.settings["positions"]]
        return (
            f" Rows may have {self.max_length.after} tokens instead of {self.max_length.before}: positions are {how}, "
            "and this step trained nothing on such rows."
        )

    def details(self) -> str:
        """What every layer does."""
        rows = [
            [f"`{name}`", self.settings["attention"] if blocks else "dense"] for name, blocks in self.layers.items()
        ]
        headings = ["layer", "attention in long rows"]
        if self.errors is not None:
            headings.append("error in blocks")
            for row, name in zip(rows, self.layers, strict=True):
                row.append(f"{self.errors[name]:.3f}" if name in self.errors else "")
        return table(headings, rows)
