"""Inputs of an encoder-decoder's decoder: targets that go with the sources, or the model's own outputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import DataError
from ..models.inputs import check_forced, decoder_inputs, decoder_vocabulary, longest_target, on_device
from ..models.states import evaluating, writing_by
from ..models.weights import bytes_of, digest_of
from ..processes import is_main_process

_LONGEST = 128  # tokens of an output at most

WRITTEN = "written-*.jsonl"
"""The files in a folder that keep what a model wrote."""

Target = dict[str, list[int]]
"""The entries of a row for its decoder."""


@dataclass(frozen=True)
class Writer:
    """An encoder-decoder that writes targets for sources alone.

    Attributes:
        model: the model.
        beams: of beam search; 1 to write greedily.
        folder: where to keep what was written, so that the same rows are written once; None to keep nothing.
    """

    model: PreTrainedModel
    beams: int = 1
    folder: Path | None = None

    def written(
        self, features: Sequence[dict[str, Any]], groups: Sequence[Sequence[int]], batch_of: Callable[..., Any]
    ) -> list[Target]:
        """What the decoder reads, for each row.

        Args:
            features: the rows.
            groups: numbers of the rows to write for together.
            batch_of: makes a batch of features.

        Raises:
            DataError: as `own_targets`.
        """
        targets: list[Target] = [{} for _ in features]
        file = None if self.folder is None else self.folder / WRITTEN.replace("*", self._key(features, groups))
        kept = [] if file is None else _kept(file)
        for place, numbers in enumerate(groups):
            if place < len(kept):
                own = [target_feature(torch.tensor(ids)) for ids in kept[place]]
            else:
                own = own_targets(self.model, batch_of([features[number] for number in numbers]), self.beams)
                if file is not None and is_main_process():
                    with file.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps([target["decoder_input_ids"] for target in own]) + "\n")
            for number, target in zip(numbers, own, strict=True):
                targets[number] = target
        return targets

    def _key(self, features: Sequence[dict[str, Any]], groups: Sequence[Sequence[int]]) -> str:
        """A hash of everything that decides what is written."""
        settings = getattr(self.model, "generation_config", None)
        how = [self.beams, groups, None if settings is None else settings.to_json_string(), digest_of(self.model)]
        digest = hashlib.sha256(json.dumps(how).encode())
        for feature in features:
            for name in sorted(feature):
                value = feature[name]
                digest.update(bytes_of(value) if isinstance(value, Tensor) else repr(value).encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class BlankWriter(Writer):
    """Writes nothing: the rows get their targets later, when it is known which of them are used."""

    def written(self, features: Sequence[dict[str, Any]], *_: Any) -> list[Target]:
        """See `Writer`."""
        return [{} for _ in features]


def _kept(file: Path) -> list[list[list[int]]]:
    """The groups of targets in a file, which is made if need be, without the end of what an interrupted run wrote."""
    file.parent.mkdir(parents=True, exist_ok=True)
    groups: list[list[list[int]]] = []
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    for line in lines:
        try:
            groups.append(json.loads(line))
        except ValueError:
            break
    if len(groups) < len(lines) and is_main_process():
        file.write_text("".join(f"{line}\n" for line in lines[: len(groups)]), encoding="utf-8")
    return groups


def divided(rows: Sequence[Any]) -> tuple[list[str], list[str] | None]:
    """The sources and the targets of rows of text; None where the rows are sources alone.

    Raises:
        DataError: if some rows have a target and others have none, or a row has a target alone.
    """
    pairs = [(row, None) if isinstance(row, str) else (*row, None)[:2] for row in rows]
    sources = [source for source, _ in pairs]
    targets = [target for _, target in pairs if isinstance(target, str) and target.strip()]
    for number, (source, target) in enumerate(pairs, 1):
        if target and target.strip() and not (isinstance(source, str) and source.strip()):
            raise DataError(
                f"The row {number} has a target without a source: {str(target)[:60]!r}. Give every target its source."
            )
    if targets and len(targets) < len(rows):
        number = next(place for place, (_, target) in enumerate(pairs) if not target or not target.strip())
        raise DataError(
            f"The row {number + 1} has a source without a target: {str(sources[number])[:60]!r}. Give every source a "
            "target, or none, to let the model answer them itself."
        )
    return sources, targets or None


def target_features(
    model: PreTrainedModel, tokenizer: Any, targets: Sequence[str], max_length: int | None
) -> list[dict[str, list[int]]]:
    """The tokens of the targets as ``labels``, and what a decoder reads to write them, one entry for each.

    Args:
        model: the model to run on them.
        tokenizer: its tokenizer.
        targets: strings.
        max_length: tokens of a target at most; None for as many as the decoder takes, which is also the limit.

    Raises:
        DataError: if the tokenizer does not encode targets, or its tokens are not those of the decoder.
    """
    if getattr(tokenizer, "tgt_lang", "") is None:
        raise DataError(
            "The tokenizer encodes no targets: it has no target language. Set tgt_lang in tokenizer_config.json, or "
            "tokenizer.tgt_lang, or give sources alone."
        )
    limit = longest_target(model)
    length = min(max_length or limit, limit)
    try:
        encoded = tokenizer(text_target=list(targets), truncation=True, max_length=length, verbose=False)["input_ids"]
    except TypeError as error:
        raise DataError(
            "The tokenizer encodes no targets: it does not take text_target. Give sources alone, or batches with "
            "decoder_input_ids (Python)."
        ) from error
    known = decoder_vocabulary(model)
    largest = max((max(ids, default=0) for ids in encoded), default=0)
    if largest >= known:
        raise DataError(
            f"The tokenizer makes a token {largest} of a target, but the decoder's vocabulary ends at {known - 1}. "
            "They do not belong together."
        )
    read = (target_feature(decoder_inputs(model, torch.tensor([ids]))[0]) for ids in encoded)
    return [feature | {"labels": ids} for feature, ids in zip(read, encoded, strict=True)]


def own_targets(model: PreTrainedModel, batch: dict[str, Tensor], beams: int = 1) -> list[Target]:
    """Inputs of the decoder while the model wrote outputs for a batch, one entry for each row.

    Tokens that its generation config forces are among them, and what that forbids is not.

    Args:
        model: the model.
        batch: sources.
        beams: of beam search; 1 to write greedily.

    Raises:
        DataError: if the model has no head to write with.
        ConfigurationError: if its generation config forces tokens that the vocabulary lacks.
    """
    if not model.can_generate():
        raise DataError(
            f"{type(model).__name__} has no head to answer with, so its decoder needs targets: give two columns of "
            "text, the source and the target."
        )
    check_forced(model)
    generator: Any = model  # a model class and a `GenerationMixin`
    longest = min(_LONGEST, longest_target(model))
    with evaluating(model), torch.no_grad(), writing_by(model, longest, num_beams=beams) as config:
        written = generator.generate(**on_device(batch, model), generation_config=config)
    start = config.decoder_start_token_id
    start = model.config.decoder_start_token_id if start is None else start
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    read = []
    for row in written.tolist():
        ids = row if start is None or row[:1] == [start] else [start, *row]
        stop = next((place for place, token in enumerate(ids) if place and token in ends), len(ids))
        read.append(target_feature(torch.tensor(ids[:stop])))
    return read


def target_feature(ids: Tensor) -> Target:
    """The entries of a row for its decoder, which reads `ids`, (T,)."""
    return {"decoder_input_ids": ids.tolist(), "decoder_attention_mask": [1] * len(ids)}
