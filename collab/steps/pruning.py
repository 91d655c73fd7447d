"""Pruning of heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .step import DataSummary, Json, Parameters, Step, rows_text, table


@dataclass(frozen=True)
class Pruning(Step):
    """The pruning of heads.

    Attributes:
        heads_before: number of heads of the model.
        heads_after: number of heads left.
        heads: by layer, the heads left, by their numbers in the original.
        parameters: parameters before and after.
        score: score that ranked the heads; None if the heads to keep were given.
        greatest: whether a greater score means that a head matters less, so that those of the greatest were removed.
        normalize: whether the gradient scores of each layer were divided by their norm.
        steps: number of steps, with new scores before each.
        data: rows that heads were scored on.
    """

    kind: ClassVar[str] = "prune"
    title: ClassVar[str] = "Pruning"

    heads_before: int
    heads_after: int
    heads: dict[str, list[int]]
    parameters: Parameters
    score: str | None = None
    greatest: bool = False
    normalize: bool = False
    steps: int = 1
    data: DataSummary | None = None

    @property
    def adjective(self) -> str:
        """See `Step`."""
        return "pruned"

    def to_dict(self) -> Json:
        """The step as an entry of the report."""
        counts = vars(self.parameters).items()
        parameters = {when: {name: getattr(count, when) for name, count in counts} for when in ("before", "after")}
        return super().to_dict() | {"parameters": parameters}

    def counts(self) -> Parameters:
        """See `Step`."""
        return self.parameters

    def summary(self) -> str:
        """Heads and parameters left, and how heads were chosen."""
        how = "The heads to keep were given."
        if self.score and self.data:
            which = f"{'greatest' if self.greatest else 'least'} {self.score.replace('_', ' ')}"
            how = (
                f"The heads of {which} were removed in {self.steps} "
                f"step{'s' if self.steps > 1 else ''}, scored on {rows_text(self.data)}, "
                f"with{'' if 'task' in self.data else 'out'} labels."
            )
        return f"{self.heads_after} of {self.heads_before} heads are left. {how}\n\n{self.parameters.table()}"

    def details(self) -> str:
        """The heads left in every layer."""
        rows = [[f"`{name}`", ", ".join(map(str, heads)) or "none"] for name, heads in self.heads.items()]
        return table(["layer", "heads left, by their numbers in the original"], rows)
