"""Converts a model in a folder into another folder (`collab convert`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch
from transformers import PreTrainedModel

from ..calibration.collect import bytes_of_sums
from ..calibration.options import CalibrationRequest
from ..conversion.convert import convert as convert_model
from ..conversion.convert import is_lossless, require_convertible
from ..conversion.dense_layers import require_texts
from ..conversion.lengthen import lengthen as lengthen_model
from ..data.source import DataSource
from ..errors import ConfigurationError
from ..heads.reconversion import PrunedOriginal, read_pruned
from ..io.checkpoint import Checkpoint
from ..io.load import load_native
from ..io.options import LoadOptions, TransformOptions
from ..io.read import Source
from ..models.assembly import in_dtype
from ..models.inputs import longest_input
from ..models.sharded import sharding
from ..models.weights import cast
from ..planning.config import ConversionConfig
from ..planning.long_rows import LongOptions
from ..processes import processes
from ..training.options import HealRequest
from .beginning import Beginning
from .calibrate import calibrate
from .heal import healed
from .lengthen import lengthened
from .speed import beside, speed
from .transform import Run, Verb, transform
from .vocabulary import fewer_tokens, text_sources

_LARGE = 500_000_000
"""Sums of a calibration that take more bytes are kept in files, in a single process."""


def convert(
    model: str,
    output: str | Path,
    config: ConversionConfig,
    *,
    calibration: CalibrationRequest | None = None,
    long: LongOptions | None = None,
    heal: HealRequest | None = None,
    dtype: torch.dtype | None = None,
    keep_tokens: str | DataSource | None = None,
    measure_speed: bool = False,
    **more: Unpack[TransformOptions],
) -> Checkpoint:
    """Converts a checkpoint into a folder that appears whole or not at all.

    Args:
        model: folder or Hub id.
        output: folder to write.
        config: settings of the conversion.
        calibration: data to calibrate on; by default that of `heal`, or else random words, and none at full rank.
        long: has the result compute long rows in blocks, before it is healed; None for no difference between rows. With
            ``dense_layers="auto"``, the layers are chosen on the text of `calibration` or, if it has none, of `heal`.
        heal: data to heal the result on; None for no training. Unfinished healing is kept in `OUTPUT.training`, and
            the same call resumes it.
        dtype: dtype of the exported weights; None keeps the checkpoint's. The solver's is `SolverOptions.precision`.
        keep_tokens: text whose tokens stay in the vocabulary, others are left out: a file (of a table, the text
            in every column), another source, or ``"auto"`` for the text of calibration or healing. The result is
            exact on text of the same tokens; other words are split into shorter tokens or become unknown. None to
            keep all tokens.
        measure_speed: whether to measure how many times as fast as the original the result is.
        **more: see [`TransformOptions`][collab.TransformOptions].

    Returns:
        The converted model as written; `Checkpoint.step` gives its `Conversion`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.calibrate`, `collab.convert`, `collab.lengthen` and
            `collab.save`. No output is left behind.
    """
    long = None if long is None or long.changes_nothing else long
    conversion = _Convert(config, calibration, heal, dtype, long)
    verbs = [
        None if keep_tokens is None else conversion.fewer_tokens(keep_tokens),
        conversion,
        None if long is None else conversion.lengthened,
        None if heal is None else healed(heal),
        None if dtype is None else conversion.cast,
        conversion.speed if measure_speed else None,
    ]
    return transform(model, output, verbs, load=conversion.load, trains=heal is not None, **more)


class _Convert:
    """Conversion as a verb.

    Args:
        config: settings.
        calibration: data to calibrate on; None for the default.
        heal: data that the result will be healed on, if any.
        dtype: dtype of the result; None for the checkpoint's.
        long: how the result computes long rows; None for no difference between rows.
    """

    def __init__(
        self,
        config: ConversionConfig,
        calibration: CalibrationRequest | None,
        heal: HealRequest | None,
        dtype: torch.dtype | None,
        long: LongOptions | None,
    ) -> None:
        self._config, self._calibration, self._heal, self._dtype, self._long = config, calibration, heal, dtype, long
        self._pruned: PrunedOriginal | None = None

    def load(self, source: Source, options: LoadOptions) -> Checkpoint:
        """Reads the original, and checks that it can be converted."""
        self._pruned = read_pruned(source, options)
        seed = self._config.seed
        checkpoint = load_native(source, options, seed=seed) if self._pruned is None else self._pruned.checkpoint
        checkpoint = replace(checkpoint, model=_widened(checkpoint.model, self._dtype))
        require_convertible(checkpoint.model)
        if self._long is not None:
            self._check_long(checkpoint, self._long)
        return checkpoint

    def _check_long(self, checkpoint: Checkpoint, long: LongOptions) -> None:
        """Raises what lengthening the result would raise, before any work."""
        longest = longest_input(checkpoint.model)
        if long.positions == "keep" and long.max_length is not None and long.max_length <= longest:
            self._long = long = replace(long, max_length=None)  # said of the rows of calibration and healing
        if long.dense_layers == "auto":
            require_texts(text_sources(self._calibration, self._heal) or None)
            long = replace(long, dense_layers=())
        lengthen_model(checkpoint, long)

    def lengthened(self, checkpoint: Checkpoint, run: Run) -> Checkpoint:
        """Has the result compute long rows in blocks, as a verb."""
        return lengthened(self._long, text_sources(self._calibration, self._heal))(checkpoint, run)

    def fewer_tokens(self, text: str | DataSource) -> Verb:
        """Leaves tokens out before."""

        def verb(checkpoint: Checkpoint, run: Run) -> Checkpoint:
            if self._pruned is not None:
                raise ConfigurationError("keep_tokens (--keep-tokens) applies to originals; this model was pruned.")
            return fewer_tokens(text, self._calibration, self._heal)(checkpoint, run)

        return verb

    def __call__(self, checkpoint: Checkpoint, run: Run) -> Checkpoint:
        """See `Verb`."""
        request = _calibration_request(checkpoint.model, self._config, self._calibration, self._heal)
        shares = sharding(request.options.shard)
        large = processes() == 1 and bytes_of_sums(checkpoint.model) > _LARGE
        kept = run.scratch() if (shares or large) and request.source != "none" else None
        moments, notes = calibrate(checkpoint, request, self._config, scratch=kept, progress=run.progress)
        beginning = None
        if self._heal is not None and not shares:
            settings = [request.options, request.in_order, self._config, self._dtype]
            beginning = Beginning.of(checkpoint, moments, settings, run)
            beginning.check()

        share = self._heal is None or sharding(self._heal.options.run.shard)
        scratch = run.scratch() if share and moments is None and (shares or processes() == 1) else None
        converted = convert_model(
            checkpoint, self._config, calibration=moments, share=share, scratch=scratch, progress=run.progress
        )
        if self._pruned is not None:
            converted = self._pruned.prune_again(converted)
        if beginning is not None:
            beginning.take(converted.model)
        return replace(converted, notes=(*converted.notes, *notes))

    def speed(self, checkpoint: Checkpoint, run: Run) -> Checkpoint:
        """Measures the speed beside the model as it was read, as a verb."""
        return speed(checkpoint, run) if self._pruned is None else beside(self._pruned.model, checkpoint, run)

    def cast(self, checkpoint: Checkpoint, run: Run) -> Checkpoint:
        """Casts the result, as a verb."""
        assert self._dtype is not None
        model = in_dtype(checkpoint.model, self._dtype)
        return replace(checkpoint, model=model, unused=cast(checkpoint.unused, self._dtype))


def _calibration_request(
    model: PreTrainedModel,
    config: ConversionConfig,
    calibration: CalibrationRequest | None,
    heal: HealRequest | None,
) -> CalibrationRequest:
    """The calibration; by default none at full rank, and otherwise on the data of healing, if there is any."""
    request = calibration or CalibrationRequest()
    lossless = is_lossless(model, config)  # or an error, before any work
    if request.source != "default":
        return request
    if lossless:
        return replace(request, source="none")
    if heal is not None and heal.source != "synthetic":
        return replace(request, source=heal.source)
    return request


def _widened(model: PreTrainedModel, dtype: torch.dtype | None) -> PreTrainedModel:
    """A model in the dtype of the export if that is more precise, so the factors keep that precision."""
    if dtype is None or torch.finfo(dtype).eps >= torch.finfo(model.dtype).eps:
        return model
    return in_dtype(model, dtype)
