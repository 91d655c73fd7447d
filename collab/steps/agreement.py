"""Agreement with the original in words: of the whole, and by source of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from .step import short, table

Agreement = Mapping[str, float]
"""Measures by name, with ``rows``; see `collab.evaluation.compare.agreement`."""

_NAMES = {"kl": "divergence of the predictions (KL, nats)", "top1": "same prediction"}
_LEAST_ROWS = 16
_FARTHER = 1.5
_SMALLEST = 0.01


def agreement_sentence(agreement: Agreement, when: str = "Measured", other: str = "the original") -> str:
    """Agreement with another model in a sentence, which begins with what or when was measured."""
    values = ", ".join(f"{name} {short(value)}" for name, value in named(agreement).items())
    return f"{when} against {other}, on {agreement['rows']:.0f} held-out row{'s' * (agreement['rows'] != 1)}: {values}."


def named(agreement: Agreement) -> dict[str, float]:
    """Measures of agreement by names for readers, without the number of rows."""
    return {_NAMES.get(name, name.replace("_", " ")): value for name, value in agreement.items() if name != "rows"}


def sources_text(after: Mapping[str, Agreement], before: Mapping[str, Agreement] | None = None) -> str:
    """Agreement by source as a table, and which source agrees clearly less than the others, with advice.

    Args:
        after: by source.
        before: the same before training, if there was any.

    Returns:
        Markdown; empty without sources.
    """
    if not after:
        return ""
    measure = _main(next(iter(after.values())))
    (name,) = named({measure: 0.0})
    parts = [agreements for agreements in (before, after) if agreements]
    headings = [name] if before is None else [f"{name}, before", "after"]
    rows = [
        [f"`{source}`", f"{agreement['rows']:.0f}", *(short(part[source][measure]) for part in parts)]
        for source, agreement in after.items()
    ]
    text = "By source of the rows:\n\n" + table(["source", "held-out rows", *headings], rows)
    weak = weak_sources(after)
    if not weak:
        return text
    names = " and ".join(f"`{source}`" for source in weak)
    return (
        f"{text}\n\nAgreement is clearly lower on {names} than on the others. More rows of that kind, a weight "
        f"(`{weak[0]}=2`), more steps of healing or a larger budget bring it closer."
    )


def weak_sources(by_source: Mapping[str, Agreement]) -> list[str]:
    """The sources on which a model is at least 1.5 times as far from the original as on the median of the others."""
    known = {source: _distance(own) for source, own in by_source.items() if own["rows"] >= _LEAST_ROWS}
    weak = []
    for source, distance in known.items():
        others = [value for other, value in known.items() if other != source]
        if others and distance > max(_FARTHER * median(others), median(others) + _SMALLEST):
            weak.append(source)
    return weak


def _main(agreement: Agreement) -> str:
    """The measure that says most: the divergence of predictions, or the cosine of embeddings."""
    return next(name for name in ("kl", "absolute_difference", "embedding_cosine", "top1") if name in agreement)


def _distance(agreement: Agreement) -> float:
    measure = _main(agreement)
    return 1 - agreement[measure] if measure in ("embedding_cosine", "top1") else agreement[measure]
