"""Collaborative attention for layers with rotary positions.

Notation as in `collab_attention`; F = d/2 frequencies θ_f. Rotary positions rotate dimensions j and j + F of a query
and a key, taken as one complex number, by e^{iθ_f t}. So head h scores tokens at positions t and s by

    Σ_f Re(x w_q^{hf} · conj(y w_k^{hf}) · e^{iθ_f (t - s)}) / √d,

and every frequency has its own complex matrices w_q^{hf} (w_k^{hf})^H. They are approximated by shared complex
dimensions, each with one frequency. Turning multiplies a shared dimension by the same number whichever head reads it,
so shared queries and keys are rotated once, and then mixed by the heads:

- ``concat``: every shared dimension belongs to one head, which keeps some of its own frequencies,
- ``cp``: head h multiplies each dimension by a complex number,
- ``tucker``: head h mixes the dimensions of one frequency by a complex matrix.

A bias of queries or keys rotates along, so both shared projections have one, and there is no content bias. A complex
number is stored as two real ones: of R real shared dimensions the first half are real parts, the second imaginary ones.

This file is copied into every exported model that uses it; it imports only torch and its own folder.
"""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from .collab_attention import CollaborativeAttention
from .collab_config import AttentionSpec
from .collab_family import CollaborativeFamily
from .collab_feed_forward import FeedForward
from .collab_kernel import Mix

Positions = tuple[Tensor, Tensor]
"""Cosine and sine of every position's angles, (1 or B, T, d) each, or (T, d). If there are fewer than tokens, the first
tokens are not rotated."""


class CollaborativeRotaryAttention(CollaborativeAttention):
    """Attention of a sequence to itself with rotary positions; see the module. A cache holds the rotated keys.

    The native layer may have fewer keys and values than queries, each of them for several heads.
    """

    native_names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "o_proj"}
    native_dropout = "attention_dropout"

    def __init__(self, native: Any, spec: AttentionSpec, config: Any) -> None:
        super().__init__(native, spec, config)
        if not self.heads:
            return
        pairs = spec.rank // 2
        count = self.attention_head_size // 2  # F
        self.frequencies = list(spec.frequencies or (pair * count // pairs for pair in range(pairs)))
        if spec.rank % 2 or max(self.frequencies) >= count:
            raise ValueError(f"Rank {spec.rank} must be even and frequencies below {count}, for rotary positions.")
        query, key, value = (self.native_projection(native, role) for role in ("query", "key", "value"))
        biased = query.bias is not None or key.bias is not None
        self.content_bias = None
        if value.out_features < self.total_heads * self.attention_head_size:  # shared by several heads
            if self.num_attention_heads < self.total_heads:
                raise ValueError("Values that several heads share cannot lose heads.")
            width = value.out_features // self.attention_head_size * self.value_width
            same = width == value.out_features
            self.value = value if same else nn.Linear(value.in_features, width, bias=value.bias is not None)
        self.query = nn.Linear(query.in_features, spec.rank, bias=biased)
        self.key = nn.Linear(key.in_features, self._share_keys(), bias=biased)
        # Neighbouring frequencies with equally many dimensions are mixed together.
        owned = [len(list(same)) for _, same in groupby(self.frequencies)]
        self._blocks = [(size, len(list(same))) for size, same in groupby(owned)]
        if spec.form == "tucker":
            numbers = 2 * sum(size**2 * blocks for size, blocks in self._blocks)
            self.mixing = nn.Parameter(torch.empty(self.num_attention_heads, numbers))

    def _share_keys(self) -> int:
        """Notes the frequencies of the keys, and returns the number of their dimensions."""
        self.key_frequencies, count = self.frequencies, self.spec.key_heads
        if count is None:
            return self.spec.rank
        heads = self.num_attention_heads
        if heads % count or len(set(self.head_ranks or ())) != 1:
            raise ValueError(f"{count} keys cannot be shared by {heads} heads of {self.head_ranks} dimensions.")
        owned = len(self.frequencies) // heads  # complex dimensions of a head, and so of a key
        starts = range(0, len(self.frequencies), owned * (heads // count))  # of the first head of each key
        self.key_frequencies = [each for start in starts for each in self.frequencies[start : start + owned]]
        return 2 * owned * count

    @classmethod
    def heads_of(cls, native: Any) -> int:
        query = cls.native_projection(native, "query")
        return query.out_features // native.head_dim

    @classmethod
    def positions_input(cls, native: Any, given: dict[str, Any]) -> Positions | None:
        return given.get("position_embeddings")

    def init_heads(
        self,
        normal: Callable[..., object],
        zeros: Callable[[Tensor], object],
        copy: Callable[[Tensor, Tensor], object],
    ) -> None:
        if self.spec.form != "concat":
            normal(self.mixing, mean=0.0, std=(self.attention_head_size / self.mixing.shape[1]) ** 0.5)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        position_embeddings: Positions | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends and returns the layer's output (B, T, D) and the attention weights (B, H, T, S) if there are any.

        Args:
            hidden_states: x = y, (B, T, D).
            attention_mask: as in `attend`.
            position_embeddings: see `Positions`.
            past_key_values: as in `attend_to_itself`.
            **kwargs: for `attend`.
        """
        return self.attend_to_itself(
            hidden_states, attention_mask, past_key_values, positions=position_embeddings, **kwargs
        )

    def placed(self, query: Tensor, key: Tensor, positions: Positions | None) -> tuple[Tensor, Tensor]:
        assert positions is not None
        angles = key_angles = self._angles(positions, query.shape[1], self.frequencies)
        if self.spec.key_heads is not None:
            key_angles = self._angles(positions, query.shape[1], self.key_frequencies)
        return _rotated(query, angles), _rotated(key, key_angles)

    def keys_apart(self, projected: Tensor) -> Tensor:
        if self.spec.key_heads is None:
            return super().keys_apart(projected)
        return _side_by_side(projected).unflatten(-1, (self.spec.key_heads, -1)).transpose(1, 2)

    def mixer(self, dtype: torch.dtype) -> Mix:
        if self.spec.form == "concat":
            return super().mixer(dtype)
        if self.spec.form == "tucker":
            return lambda shared, room: self._mixed_in_blocks(shared, self.mixing.to(dtype))
        real, imaginary = self.mixing.to(dtype).unsqueeze(1).chunk(2, dim=-1)  # (H, 1, R/2)
        same, crossed = torch.cat([real, real], dim=-1), torch.cat([-imaginary, imaginary], dim=-1)  # (H, 1, R)

        def mix(shared: Tensor, room: Tensor | None) -> Tensor:
            swapped = torch.cat(shared.chunk(2, dim=-1)[::-1], dim=-1)  # (B, 1, T, R)
            if room is None:
                return shared * same + swapped * crossed
            return torch.mul(shared, same, out=room).addcmul_(swapped, crossed)

        return mix

    def queries_of_one_token(self, projected: Tensor) -> Tensor:
        return (
            super().queries_of_one_token(projected)
            if self.head_ranks is not None
            else self._mixed(projected).squeeze(2)
        )

    def _mixed_in_blocks(self, shared: Tensor, mixing: Tensor) -> Tensor:
        """Queries by head, (B, H, T, R), by the complex cores of every frequency; shared queries (B, 1, T, R)."""
        half = shared.shape[-1] // 2
        real: list[Tensor] = []
        imaginary: list[Tensor] = []
        place = read = 0
        for size, blocks in self._blocks:
            width, numbers = size * blocks, 2 * size**2 * blocks
            parts = shared[..., place : place + width], shared[..., half + place : half + place + width]
            # (B, 1, blocks, T, 2·size), because a complex product is a real one of twice the size
            part = torch.cat([part.unflatten(-1, (blocks, size)) for part in parts], dim=-1).transpose(-2, -3)
            cores = mixing[:, read : read + numbers].unflatten(-1, (blocks, 2, size, size))
            core_real, core_imaginary = cores.unbind(2)  # (H, blocks, size, size)
            for found, sides in (
                (real, (core_real, -core_imaginary)),
                (imaginary, (core_imaginary, core_real)),
            ):
                product = part @ torch.cat(sides, dim=-2)  # (B, H, blocks, T, size)
                found.append(product.transpose(-2, -3).flatten(-2))
            place, read = place + width, read + numbers
        return torch.cat(real + imaginary, dim=-1)

    def _angles(self, positions: Positions, length: int, frequencies: list[int]) -> Positions:
        """Cosine and sine for complex dimensions of these frequencies, (1 or B, T, number of them)."""
        cos, sin = (part[..., frequencies] for part in positions)
        missing = length - cos.shape[-2]  # tokens that have no position
        if missing:
            before = (*cos.shape[:-2], missing, cos.shape[-1])
            cos = torch.cat([cos.new_ones(before), cos], dim=-2)
            sin = torch.cat([sin.new_zeros(before), sin], dim=-2)
        return cos, sin

    def _split(self, projected: Tensor) -> Tensor:
        """As in the base, of real and imaginary parts side by side, so that each head's dimensions are neighbours."""
        return super()._split(_side_by_side(projected))


def _side_by_side(projected: Tensor) -> Tensor:
    """All real and then all imaginary parts, (…, R), as real and imaginary part of each dimension in turn."""
    return torch.stack(projected.chunk(2, dim=-1), dim=-1).flatten(-2)


def _rotated(shared: Tensor, angles: Positions) -> Tensor:
    """Shared queries or keys (B, T, R) rotated by their positions, in at least the precision of the angles."""
    cos, sin = angles
    real, imaginary = shared.chunk(2, dim=-1)
    rotated = torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)
    return rotated.to(shared.dtype)


class LlamaFamily(CollaborativeFamily):
    """Llama and other families with its attention and its gated feed-forward layer."""

    native_attention = {"{}Attention": CollaborativeRotaryAttention}
    native_feed_forward = {"{}MLP": FeedForward("up_proj", "down_proj", gate="gate_proj")}
    expands_masks = True
