"""The history of a model: the report in its folder, and the steps that were done since it was loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import CheckpointError
from .conversion import Conversion, VocabularyCut
from .measurement import Speed
from .step import Count, Founding, Json, Parameters, Step, plain

_NUMBER = int | float
_DONE = {
    "convert": "converted",
    "keep_tokens": "cut to fewer tokens",
    "refine": "refined",
    "compress": "compressed",
    "prune": "pruned",
    "heal": "healed",
    "lengthen": "lengthened",
    "finetune": "fine-tuned",
    "evaluate": "evaluated",
    "expand": "expanded",
    "export": "exported",
}
"""What was done with a model, by the kind of the step."""
_STEPS = [{"step": str}]
# The entries of a report that are read again; the entries of a list are all of one form.
_FORM: Json = {
    "source": str | None,
    "revision": str | None,
    "command": str | None,
    "settings": dict,
    "parameters": {"query_key": {"ratio": _NUMBER}},
    "layers": [{"form": str, "error": _NUMBER, "score_error": _NUMBER | None}],
    "history": _STEPS,
    "original_history": _STEPS,
}


@dataclass(frozen=True)
class History:
    """The report in a model's folder, as collab wrote it.

    At its top stand the entries of the conversion, compression or pruning that made the model of an original, and then
    ``history``, the steps since, and ``original_history``, those of the original before. A model that is not
    collaborative has only a ``history``.

    Attributes:
        report: the report; empty if there is none.
    """

    report: Json = field(default_factory=dict)

    @classmethod
    def read(cls, report: Json, name: str) -> History:
        """The history in a report.

        Args:
            report: the report.
            name: name of its file, for the message.

        Raises:
            CheckpointError: if an entry is of another type than collab writes.
        """
        for entry, form in _FORM.items():
            misfit = _misfit(report[entry], form, entry) if entry in report else None
            if misfit is not None:
                raise CheckpointError(
                    f"{misfit} in {name} is not what collab writes there. Restore the file, or delete it if you can do "
                    "without the model's history."
                )
        return cls(report)

    def __bool__(self) -> bool:
        """Whether there is a report."""
        return bool(self.report)

    @property
    def source(self) -> str | None:
        """Name of the original of a collaborative model."""
        return self.report.get("source")

    @property
    def revision(self) -> str | None:
        """Commit of the original on the Hub."""
        return self.report.get("revision")

    @property
    def command(self) -> str | None:
        """The command line that made the collaborative model."""
        return self.report.get("command")

    @property
    def settings(self) -> Json | None:
        """The settings of that command."""
        return self.report.get("settings")

    @property
    def layers(self) -> list[Json]:
        """The entries of a conversion's layers; empty for a compression."""
        return self.report.get("layers") or []

    @property
    def only_layout(self) -> bool:
        """Whether the conversion changed nothing but the layout, such as before heads are pruned from an original."""
        whole = (layer["form"] == "concat" and layer.get("rank") == layer.get("full_rank") for layer in self.layers)
        return bool(self.layers) and all(whole)

    @property
    def done(self) -> str:
        """What was done with the original, in its order: converted, pruned and then healed. Empty if nothing was."""
        converted = ["converted"] if self.layers and not self.only_layout else []
        return _listed([*converted, *(_DONE.get(kind, kind) for kind in self.kinds)])

    @property
    def done_before(self) -> str:
        """The same of the original, before it was that."""
        return _listed([_DONE.get(kind, kind) for kind in self.original_kinds])

    @property
    def entries(self) -> list[Json]:
        """The entries of the steps since."""
        return self.report.get("history", [])

    @property
    def kinds(self) -> list[str]:
        """The kinds of the steps since."""
        return [entry["step"] for entry in self.entries]

    @property
    def original_kinds(self) -> list[str]:
        """The kinds of the steps of the original."""
        return [entry["step"] for entry in self.report.get("original_history", [])]

    def then(
        self,
        steps: Sequence[Step],
        *,
        source: str | None = None,
        revision: str | None = None,
        command: str | None = None,
        notes: Sequence[str] = (),
        verification: Json | None = None,
    ) -> History:
        """The history after more steps.

        Args:
            steps: the steps.
            source: name of the checkpoint that they began with.
            revision: its commit on the Hub.
            command: the command line.
            notes: notes on that checkpoint for the user.
            verification: result of reloading the written model.
        """
        cut = next((step for step in steps if isinstance(step, VocabularyCut)), None)
        founding = next((step for step in steps if isinstance(step, Founding)), None)
        speed = next((step.to_dict() for step in steps if isinstance(step, Speed)), None)
        stated = Conversion | Speed if founding is None else Conversion | Speed | VocabularyCut  # in the head
        since = [step for step in steps if not isinstance(step, stated)]
        entries = [{"step": step.kind, **step.to_dict(), "command": command} for step in since]
        if founding is None:
            changed: Json = {} if speed is None else {"speed": speed}
            if cut is not None and "parameters" in self.report:
                model = self.report["parameters"]["model"] | {"after": cut.parameters.after}
                changed |= {"keep_tokens": cut.to_dict(), "parameters": self.report["parameters"] | {"model": model}}
            return History(self.report | {"history": [*self.entries, *entries]} | changed)
        head = founding.head()
        said = [*notes, *founding.notes, *([cut.summary()] if cut else [])]
        report = {
            "source": source,
            "revision": revision,
            "command": command,
            **head,
            "parameters": plain(_overall(steps, cut)),
            "speed": speed,
            "verification": verification,
            "keep_tokens": None if cut is None else cut.to_dict(),
            "notes": said,
            "history": entries,
            "original_history": [*self.report.get("original_history", []), *self.entries],
        }
        return History(report)


def _listed(done: Sequence[str]) -> str:
    return " and then ".join(filter(None, (", ".join(done[:-1]), *done[-1:])))


def _overall(steps: Iterable[Step], cut: VocabularyCut | None) -> Parameters:
    """Parameters before the first and after the last of several steps; those of tokens left out before count, too."""
    counts = [count for step in steps if (count := step.counts()) is not None]
    first, last = counts[0], counts[-1]
    pairs = ((getattr(first, name), getattr(last, name)) for name in ("query_key", "attention", "model"))
    query_key, attention, model = (Count(before.before, after.after) for before, after in pairs)
    return Parameters(query_key, attention, model if cut is None else Count(cut.parameters.before, model.after))


def _misfit(value: Any, form: Any, where: str) -> str | None:
    """Where a value of a report is not of its form; None if it is."""
    if not isinstance(value, type(form) if isinstance(form, dict | list) else form):
        return where
    parts: Iterable[str | None] = ()
    if isinstance(form, dict):
        parts = (
            _misfit(value[key], inner, f"{where}.{key}") if key in value else f"{where} without {key}"
            for key, inner in form.items()
        )
    elif isinstance(form, list):
        parts = (_misfit(entry, form[0], f"{where}[{number}]") for number, entry in enumerate(value))
    return next(filter(None, parts), None)
