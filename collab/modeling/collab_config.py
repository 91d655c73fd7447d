"""The config of a collaborative model: the form and rank of every attention layer, and other widths that were reduced.

This file is copied into every exported model; it imports only the standard library.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

FORMS = ("concat", "cp", "tucker")
CONTENTS = ("exact", "folded", "none")
LONG_KINDS = ("local", "summaries")
GROUPINGS = ("mean", "stride")


@dataclass(frozen=True)
class LongRows:
    """How an attention layer computes long rows; see `collab_long`, and for decoders `collab_forgetting`.

    Attributes:
        block: b, the number of tokens in a block; a token sees those of its block and of the blocks beside it. In a
            decoder it sees none behind itself.
        global_tokens: g, the number of first tokens that see all tokens and that all tokens see.
        dense_below: rows of fewer tokens are computed as by a layer without this.
        summaries: how the rest of the row is summarized: ``mean:n`` (groups of n tokens, each by its mean) or
            ``stride:n`` (each by its first token); None if a token does not see the rest.

    Raises:
        ValueError: if an entry is out of range.
    """

    block: int = 128
    global_tokens: int = 1
    dense_below: int = 1024
    summaries: str | None = None

    def __post_init__(self) -> None:
        check_width("block", self.block)
        check_width("dense_below", self.dense_below)
        some = self.global_tokens
        if isinstance(some, bool) or not isinstance(some, int) or not 0 <= some < self.dense_below:
            raise ValueError(f"global_tokens must be a number from 0, and below dense_below, not {some!r}.")
        if self.summaries is not None and self.block % self.grouping[1]:
            raise ValueError(f"A block of {self.block} tokens cannot be divided into groups of {self.grouping[1]}.")

    @property
    def kind(self) -> str:
        """``local`` or ``summaries``."""
        return "local" if self.summaries is None else "summaries"

    def window(self, causal: bool = False) -> int:
        """The number of keys that a token of a long row sees without those of the rest; in a decoder at most."""
        return (2 if causal else 3) * self.block + self.global_tokens

    def keys(self, length: int, causal: bool = False) -> int:
        """The number of keys that tokens see which are not global ones, in a row of so many: the largest in an encoder.

        In a decoder it is the mean, where tokens of a short row count as if they saw those behind them.
        """
        if length < self.dense_below:
            return length
        near = min(length, self.window(causal))
        seen = near if self.summaries is None else near - (near - length) // self.grouping[1]
        if not causal:
            return seen
        short = self.dense_below - 1
        return (short**2 + (length - short) * seen) // length

    def held(self, length: int) -> int:
        """The number of keys that a decoder's cache holds at most, for a row of up to so many tokens."""
        gone = max(0, (length - self.global_tokens) // self.block - 1) * self.block
        groups = 0 if self.summaries is None else gone // self.grouping[1]
        return min(length, max(self.dense_below - 1, self.global_tokens + groups + 2 * self.block))

    @property
    def grouping(self) -> tuple[str, int]:
        """What stands for a group of tokens, one of `GROUPINGS`, and n.

        Raises:
            ValueError: if `summaries` says nothing of the kind.
        """
        how, _, count = (self.summaries or "").partition(":")
        if how not in GROUPINGS or not count.isdecimal() or int(count) < 2:
            raise ValueError(
                f"summaries must be mean:n or stride:n with n from 2, such as mean:64, not {self.summaries!r}."
            )
        return how, int(count)


@dataclass(frozen=True)
class AttentionSpec:
    """The shape of one collaborative attention layer.

    Attributes:
        form: ``concat``, ``cp`` or ``tucker``; see `collab_attention.CollaborativeAttention`.
        rank: R, the number of shared query/key dimensions.
        head_ranks: in the ``concat`` form, how many of the R dimensions each head owns; None means as evenly as
            possible. None in the other forms.
        content: how the content term y·c_h is stored: ``exact``, an additive bias from a D×H projection of the keys'
            input; ``folded`` into an offset of each head's query, so that any attention kernel applies; or ``none``.
            None means exact if the native layer has a query bias, and none otherwise.
        heads: indices of the native layer's heads that are kept, in ascending order; None means all. A layer without
            heads outputs the bias of its output projection and has rank 0.
        value_width: width of each head's values; None means d, the native one.
        frequencies: with rotary positions, the frequency of each of the R/2 complex dimensions; see `collab_rotary`.
            None means as evenly as possible, in order.
        long: how long rows are computed; None if all are computed alike.
        key_heads: with rotary positions in the ``concat`` form, the number of keys if neighbouring heads share them;
            None if each head has its own.

    Raises:
        ValueError: if the entries do not fit together.
    """

    form: str
    rank: int
    head_ranks: tuple[int, ...] | None = None
    content: str | None = None
    heads: tuple[int, ...] | None = None
    value_width: int | None = None
    frequencies: tuple[int, ...] | None = None
    long: LongRows | None = None
    key_heads: int | None = None

    def __post_init__(self) -> None:
        if self.key_heads is not None:
            check_width("key_heads", self.key_heads)
            if self.form != "concat":
                raise ValueError(f"key_heads belong to the concat form, not to {self.form}.")
        if self.content not in (None, *CONTENTS):
            known = ", ".join(CONTENTS)
            raise ValueError(f"Unknown content {self.content!r} of collaborative attention; known are {known}.")
        if self.form not in FORMS:
            raise ValueError(f"Unknown form {self.form!r} of collaborative attention; known are {', '.join(FORMS)}.")
        if self.heads is not None and (
            any(type(head) is not int or head < 0 for head in self.heads) or list(self.heads) != sorted(set(self.heads))
        ):
            raise ValueError(f"heads {list(self.heads)} must be different numbers from 0, in ascending order.")
        if self.value_width is not None:
            check_width("value_width", self.value_width)
        if self.heads == ():
            if self.rank != 0:
                raise ValueError(f"An attention layer without heads has rank 0, not {self.rank!r}.")
        elif not isinstance(self.rank, int) or self.rank < 1:
            raise ValueError(
                f"The rank of a collaborative attention layer must be a positive integer, not {self.rank!r}."
            )
        if self.head_ranks is not None:
            if self.form != "concat":
                raise ValueError(f"head_ranks belong to the concat form, not to {self.form}.")
            if (
                any(type(owned) is not int or owned < 0 for owned in self.head_ranks)
                or sum(self.head_ranks) != self.rank
            ):
                raise ValueError(
                    f"head_ranks {list(self.head_ranks)} must not be negative and must add up to {self.rank}."
                )

        if self.frequencies is not None and (2 * len(self.frequencies) != self.rank or min(self.frequencies) < 0):
            raise ValueError(f"There must be {self.rank} / 2 frequencies from 0, not {list(self.frequencies)}.")

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> "AttentionSpec":
        """Reads an entry of `collab_layers`."""
        known = {"form", "rank", "head_ranks", "content", "heads", "value_width", "frequencies", "long", "key_heads"}
        if set(entry) - known or not {"form", "rank"} <= set(entry):
            raise ValueError(
                "An entry of collab_layers has form, rank and perhaps head_ranks, content, heads, value_width, "
                f"frequencies, long and key_heads, not {sorted(entry)}. Was the model written by a newer collab?"
            )
        owned, heads = (None if entry.get(name) is None else tuple(entry[name]) for name in ("head_ranks", "heads"))
        numbers = entry.get("frequencies")
        frequencies = None if numbers is None else tuple(map(int, numbers.split()))
        long = None if entry.get("long") is None else LongRows(**entry["long"])
        width = entry.get("value_width")
        shared = entry.get("key_heads")
        return cls(entry["form"], entry["rank"], owned, entry.get("content"), heads, width, frequencies, long, shared)

    def to_dict(self) -> dict[str, Any]:
        """Writes an entry of `collab_layers`."""
        entry: dict[str, Any] = {"form": self.form, "rank": self.rank}
        if self.head_ranks is not None:
            entry["head_ranks"] = list(self.head_ranks)
        if self.content is not None:
            entry["content"] = self.content
        if self.heads is not None:
            entry["heads"] = list(self.heads)
        if self.value_width is not None:
            entry["value_width"] = self.value_width
        if self.frequencies is not None:
            entry["frequencies"] = " ".join(map(str, self.frequencies))  # as a list, each would take a line of the file
        if self.long is not None:
            entry["long"] = {name: value for name, value in asdict(self.long).items() if value is not None}
        if self.key_heads is not None:
            entry["key_heads"] = self.key_heads
        return entry


def check_width(name: str, width: Any) -> None:
    """Raises a ValueError for a width that is not a positive integer."""
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"{name} must be a positive integer, not {width!r}.")


@dataclass(repr=False)
class CollaborativeConfig:
    """Mixin that adds the shapes of attention and feed-forward layers to a native config.

    Attributes:
        collab_layers: one entry for each attention layer, in the order of the model's modules: ``{"form": "cp", "rank":
            128}``, with ``"head_ranks"`` besides in the concat form, ``"heads"`` where some were pruned,
            ``"value_width"`` where values are narrower, and ``"long"`` where long rows are computed in blocks. In an
            encoder-decoder the encoder's entries come first, then those of self-attention and cross-attention of each
            of the decoder's layers in turn. A single entry stands for every layer. None means the ``cp`` form with R =
            K throughout, which is where the paper's models trained from scratch start.
        collab_feed_forward: number of neurons of each feed-forward layer, in the order of the model's modules; None
            means that of the native config throughout.
        collab_dropped_layers: numbers, in the original model, of the layers that this one lacks, in an encoder-decoder
            of the encoder's; None means none.
        collab_dropped_decoder_layers: the same of the decoder of an encoder-decoder.
        architectures: as in transformers, which cannot choose among several classes of a config where this is None.
    """

    collab_layers: list[dict[str, Any]] | None = None
    collab_feed_forward: list[int] | None = None
    collab_dropped_layers: list[int] | None = None
    collab_dropped_decoder_layers: list[int] | None = None
    architectures: list[str] | None = field(default_factory=list)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Any:
        """As in transformers, but T5's for its decoder has the number of its decoder's layers, which a cache needs."""
        config = super().get_text_config(decoder=decoder, encoder=encoder)  # type: ignore[misc]
        if decoder and not encoder and config is not self and hasattr(config, "num_decoder_layers"):
            config.num_layers = config.num_decoder_layers
        return config

    def validate_collab_layers(self) -> None:
        """Validates the entries; called by the config's own validation."""
        for entry in self.collab_layers or []:
            AttentionSpec.from_dict(entry)

    def validate_collab_feed_forward(self) -> None:
        """Validates the widths; called by the config's own validation."""
        for width in self.collab_feed_forward or []:
            check_width("A width in collab_feed_forward", width)

    def feed_forward_widths(self, count: int) -> list[int] | None:
        """The number of neurons of each of `count` feed-forward layers; None if they are native.

        Raises:
            ValueError: if there is not one entry for each layer.
        """
        if self.collab_feed_forward is not None and len(self.collab_feed_forward) != count:
            raise ValueError(
                f"The config has {len(self.collab_feed_forward)} widths in collab_feed_forward, but the model has "
                f"{count} feed-forward layers."
            )
        return self.collab_feed_forward

    def attention_specs(self, full_ranks: list[int]) -> list[AttentionSpec]:
        """The shape of each attention layer.

        Args:
            full_ranks: K of each layer.

        Raises:
            ValueError: if there is not one entry for each layer, or a rank is above K.
        """
        if self.collab_layers is None:
            return [AttentionSpec("cp", full) for full in full_ranks]
        entries = self.collab_layers * len(full_ranks) if len(self.collab_layers) == 1 else self.collab_layers
        if len(entries) != len(full_ranks):
            raise ValueError(
                f"The config has {len(entries)} collab_layers, but the model has {len(full_ranks)} attention layers."
            )
        specs = [AttentionSpec.from_dict(entry) for entry in entries]
        for spec, full in zip(specs, full_ranks, strict=True):
            if spec.rank > full:
                raise ValueError(f"Rank {spec.rank} is above {full}, the query/key dimensions of the attention layer.")
        return specs
