"""Training settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from ..data.source import Mixture, NamedSource, check_length
from ..device import DTYPES, Dtype, check_device
from ..errors import ConfigurationError
from ..processes import processes

TrainingPrecision = Dtype | Literal["auto"]
PRECISIONS = ("auto", *DTYPES)

Trainable = Literal["factors", "attention", "layers", "all"]

Optimizer = Literal["adamw", "muon"]


@dataclass(frozen=True)
class RunOptions:
    """Settings that healing and fine-tuning share.

    Attributes:
        learning_rate: peak learning rate, with linear warm-up and linear decay to zero. If None, healing finds one
            (`find_learning_rate`); fine-tuning needs one.
        batch_size: rows in a step, over all processes and accumulation steps together.
        steps: number of steps; None to train for `epochs`.
        epochs: passes over the data, if `steps` is None.
        warmup: fraction of the steps for the warm-up of the learning rate.
        weight_decay: weight decay.
        evaluations: number of evaluations on the held-out rows, each with a checkpoint.
        patience: evaluations without improvement after which training stops; None to train to the end.
        precision: ``bfloat16`` and ``float16`` compute in half precision and keep the weights in float32; ``auto`` is
            bfloat16 where the processor multiplies it faster, and float32 elsewhere.
        gradient_accumulation_steps: number of forward and backward passes that a batch is divided into, to save memory;
            None for as few as have at most 8,192 tokens each, but two or more of large batches, whose rows then
            differ in length.
        gradient_checkpointing: whether to recompute activations in the backward pass, to save memory.
        device: ``cpu`` or ``cuda``; None for a GPU if there is one.
        seed: random seed of the order of the rows, dropout and new weights.
        shard: whether several processes share the weights of the model, of its teacher and of the optimizer, of which
            each keeps a part, instead of each having all of them.

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
    precision: TrainingPrecision = "float32"
    gradient_accumulation_steps: int | None = 1
    gradient_checkpointing: bool = False
    device: str | None = None
    seed: int = 0
    shard: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "evaluations"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("steps", "patience", "gradient_accumulation_steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if (self.learning_rate is not None and not self.learning_rate > 0) or not self.epochs > 0:
            raise ConfigurationError("learning_rate and epochs must be above 0.")
        if not 0 <= self.warmup < 1 or not self.weight_decay >= 0:
            raise ConfigurationError("warmup must be at least 0 and below 1, and weight_decay at least 0.")
        if self.precision not in PRECISIONS:
            raise ConfigurationError(f"Unknown precision {self.precision!r}; choose one of {', '.join(PRECISIONS)}.")
        if self.batch_size % (self.gradient_accumulation_steps or 1):
            raise ConfigurationError(
                f"A batch of {self.batch_size} rows cannot be divided into {self.gradient_accumulation_steps} "
                "accumulation steps."
            )
        if not 0 <= self.seed < 2**32:
            raise ConfigurationError(f"seed must be from 0 to 2^32 - 1, not {self.seed}.")
        check_device(self.device)

    def check_processes(self) -> None:
        """Raises a ConfigurationError if the processes cannot divide a step among them."""
        passes = self.gradient_accumulation_steps or 1
        if self.batch_size % (processes() * passes):
            raise ConfigurationError(
                f"A batch of {self.batch_size} rows cannot be divided among {processes()} processes with {passes} "
                "accumulation steps each. Use another number of processes, or another batch_size (--batch-size of "
                "collab heal and collab finetune)."
            )


@dataclass(frozen=True)
class RefineOptions:
    """Settings of refinement.

    Attributes:
        steps: steps of Adam for every layer; 0 for none.
        rows: rows in a step; a few more if they do not divide into batches.
        tokens: tokens in a step; a step ends before `rows` rows once it has this many.
        learning_rate: peak learning rate relative to the root mean square of the weights of a matrix, with warm-up and
            cosine decay to zero. None for 0.02, and for 0.01 in the ``tucker`` form, whose cores are full matrices.
        seed: random seed of the order of the batches.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    steps: int = 150
    rows: int = 32
    tokens: int = 512
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
    """Settings of healing.

    Attributes:
        trainable: parameters to train: ``factors`` (shared projections, M or cores, content), ``attention`` (value and
            output projections as well), ``layers`` (everything in the layers that have such attention) or ``all``.
        samples: largest number of rows.
        max_length: largest number of tokens of a row; None for the model's limit.
        fragments: part of the rows of text to cut to fragments of 2 to 12 tokens, which brings an embedder closer to
            its original on kinds of text that the rows lack. Rows for models with logits stay whole.
        joined: part of the rows of text, fragments included, to lengthen by others to 24 to 256 tokens, which brings an
            embedder closer to its original on texts longer than the rows. Rows for models with logits stay as they are.
        beams: of the beam search by which the original of an encoder-decoder writes targets for sources alone; 1 to
            write greedily.
        optimizer: ``adamw``, or ``muon``, which brings whole layers closer to the original in the same time, in steps
            of 128 rows.
        held_out: largest number of rows that are held out to judge by, and not more than one in eight.
        run: training settings.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    trainable: Trainable = "factors"
    samples: int = 8192
    max_length: int | None = None
    fragments: float = 0.0
    joined: float = 0.0
    run: RunOptions = field(default_factory=lambda: RunOptions(steps=600))
    beams: int = 1
    optimizer: Optimizer = "adamw"
    held_out: int = 512

    def __post_init__(self) -> None:
        for name, known in (("trainable", Trainable), ("optimizer", Optimizer)):
            if getattr(self, name) not in get_args(known):
                raise ConfigurationError(
                    f"Unknown {name} {getattr(self, name)!r}; choose one of {', '.join(get_args(known))}."
                )
        check_length(self.max_length)
        if self.samples < 2:
            raise ConfigurationError(f"samples must be at least 2, one of them to hold out, not {self.samples}.")
        if isinstance(self.held_out, bool) or not isinstance(self.held_out, int) or self.held_out < 1:
            raise ConfigurationError(f"held_out must be a whole number of at least 1, not {self.held_out!r}.")
        if isinstance(self.beams, bool) or not isinstance(self.beams, int) or self.beams < 1:
            raise ConfigurationError(f"beams must be a whole number of at least 1, not {self.beams!r}.")
        for name in ("fragments", "joined"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigurationError(f"{name} must be from 0 to 1, not {getattr(self, name)}.")


AFTER_COMPRESSION = HealOptions(
    "layers",
    samples=65536,
    fragments=0.5,
    joined=0.02,
    run=RunOptions(
        batch_size=128, steps=700, warmup=0.03, evaluations=3, precision="auto", gradient_accumulation_steps=None
    ),
    optimizer="muon",
)
"""How `collab compress` heals by default (docs/benchmarks/unseen.md)."""


@dataclass(frozen=True)
class HealRequest:
    """Data and settings for healing a conversion before it is saved.

    Attributes:
        source: ``synthetic`` (random words), a `DataSource` or a `Mixture` of several.
        options: settings of healing.
    """

    source: NamedSource | Mixture
    options: HealOptions = field(default_factory=HealOptions)


@dataclass(frozen=True)
class FinetuneOptions:
    """Settings of fine-tuning.

    Attributes:
        max_length: largest number of tokens of a row; None for the model's limit.
        distill: weight of the distillation loss, from 0 to 1, beside that of the labels; ignored without a teacher.
        dropout: dropout probability of all layers; None for the model's own.
        run: training settings.

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
            raise ConfigurationError(f"dropout must be at least 0 and below 1, not {self.dropout}.")
