"""How to train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from ..data.source import DataSource, check_length
from ..errors import ConfigurationError
from ..io.options import DTYPES, Dtype

Trainable = Literal["factors", "attention", "all"]


@dataclass(frozen=True)
class RunOptions:
    """What healing and fine-tuning have in common.

    Attributes:
        learning_rate: the highest; it rises over the first `warmup` of the steps and falls to zero by the last. Healing
            finds one if it is None (`find_learning_rate`); fine-tuning needs one.
        batch_size: rows in a step, over all processes and parts together.
        steps: how many; None to go by `epochs`.
        epochs: passes over the data, if `steps` is None.
        warmup: the part of the steps over which the learning rate rises.
        weight_decay: of AdamW.
        evaluations: how often the held-out rows are looked at and a checkpoint is written.
        patience: evaluations without improvement after which training stops; None to go to the end.
        precision: ``bfloat16`` and ``float16`` compute in half precision and keep the weights in float32.
        gradient_accumulation_steps: pieces that a batch is computed in, one after the other, to save memory.
        gradient_checkpointing: compute activations twice instead of keeping them.
        device: ``cpu``, or None for a GPU where there is one.
        seed: of the order of the rows, of dropout and of new weights.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    learning_rate: float | None = None
    batch_size: int = 32
    steps: int | None = None
    epochs: float = 3.0
    warmup: float = 0.1
    weight_decay: float = 0.0
    evaluations: int = 6
    patience: int | None = None
    precision: Dtype = "float32"
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    device: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "evaluations", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("steps", "patience"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if (self.learning_rate is not None and not self.learning_rate > 0) or not self.epochs > 0:
            raise ConfigurationError("The learning rate and the number of epochs must be above 0.")
        if not 0 <= self.warmup < 1 or not self.weight_decay >= 0:
            raise ConfigurationError("warmup must be from 0 to below 1, and weight_decay not below 0.")
        if self.precision not in DTYPES:
            raise ConfigurationError(f"Unknown precision {self.precision!r}; choose one of {', '.join(DTYPES)}.")
        if self.batch_size % self.gradient_accumulation_steps:
            raise ConfigurationError(
                f"A batch of {self.batch_size} rows cannot be divided into {self.gradient_accumulation_steps} "
                "accumulation steps."
            )
        if self.device not in (None, "cpu", "cuda"):
            raise ConfigurationError(f"device must be cpu or cuda, not {self.device!r}.")


@dataclass(frozen=True)
class RefineOptions:
    """How to refine.

    Attributes:
        steps: of Adam, for every layer; 0 for none.
        rows: in a step, or a few more: batches of fewer rows are used whole.
        tokens: in a step; it ends before it has `rows` rows once it has as many tokens.
        learning_rate: of a weight in the first step after the warm-up, as a part of the root mean square of all weights
            of its matrix; it falls to zero along a cosine. None for 0.02, and for ``tucker``, whose queries and keys
            meet in a whole core, 0.01.
        seed: of the order of the batches.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    steps: int = 150
    rows: int = 32
    tokens: int = 1024
    learning_rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, lowest in (("steps", 0), ("rows", 1), ("tokens", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ConfigurationError(f"{name} must be a whole number of at least {lowest}, not {value!r}.")
        rate = self.learning_rate
        if rate is not None and not (isinstance(rate, int | float) and 0 < rate < 1):
            raise ConfigurationError(f"learning_rate must be above 0 and below 1, not {rate!r}.")


@dataclass(frozen=True)
class HealOptions:
    """How to heal.

    Attributes:
        trainable: ``factors`` (shared projections, M or cores, content), ``attention`` (with value and output
            projections) or ``all``.
        samples: rows at most; one in eight, and at most 512, are held out.
        max_length: tokens of a row at most; None for as many as the model takes.
        run: how to train.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    trainable: Trainable = "factors"
    samples: int = 8192
    max_length: int | None = None
    run: RunOptions = field(default_factory=lambda: RunOptions(steps=600))

    def __post_init__(self) -> None:
        if self.trainable not in get_args(Trainable):
            raise ConfigurationError(f"Unknown part {self.trainable!r}; train factors, attention or all.")
        check_length(self.max_length)
        if self.samples < 2:
            raise ConfigurationError(f"Healing needs at least 2 rows, one of them to hold out, not {self.samples}.")


@dataclass(frozen=True)
class HealRequest:
    """What to heal a conversion on, before it is written.

    Attributes:
        source: ``synthetic`` (random vocabulary) or a `DataSource`, which calibrates too if nothing else is asked for.
        options: training settings.
    """

    source: Literal["synthetic"] | DataSource
    options: HealOptions = field(default_factory=HealOptions)


@dataclass(frozen=True)
class FinetuneOptions:
    """How to fine-tune.

    Attributes:
        max_length: tokens of a row at most; None for as many as the model takes.
        distill: how much the teacher's answers count beside the labels, from 0 to 1; of no meaning without a teacher.
        dropout: set every dropout probability to this; None to leave the model's own.
        run: how to train.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    max_length: int | None = None
    distill: float = 0.5
    dropout: float | None = None
    run: RunOptions = field(default_factory=lambda: RunOptions(learning_rate=5e-5, weight_decay=0.01))

    def __post_init__(self) -> None:
        check_length(self.max_length)
        if not 0 <= self.distill <= 1:
            raise ConfigurationError(f"distill must be from 0 to 1, not {self.distill}.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigurationError(f"dropout must be from 0 to below 1, not {self.dropout}.")
