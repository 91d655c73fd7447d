"""Collaborative attention for layers with disentangled positions (DeBERTa, He et al. 2021).

Notation as in `collab_attention`; p (J, D) rows of the relative embedding, j(t, s) the row for tokens t and s. Content
and positions use the same query and key projections, so every term has the same A_h, and one decomposition serves all:

    s_h(t, s) = ([x_t A_h y_s + y_s·c_h] + [x_t A_h p_j + p_j·c_h] + [p_j A_h y_s + y_s·c_h + p_j·e_h]) / √(n·d)

The second bracket is the term ``c2p`` (content to position), the third one ``p2c``; a config may leave out either. n is
1, and one more for each. c_h = W_K^h b_Q^h as in other layers. e_h = W_Q^h b_K^h is new: the bias of the keys meets a
query that depends on the key's position, so it does not cancel in the softmax.

This file is copied into every exported model that uses it; it imports only torch and its own folder.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .collab_attention import CollaborativeSelfAttention
from .collab_config import AttentionSpec

_TERMS = ("c2p", "p2c")


class PositionTerms(NamedTuple):
    """Which terms of positions a layer adds to its scores.

    Attributes:
        c2p: content to position.
        p2c: position to content.
        span: half the number of rows of the relative embedding.
    """

    c2p: bool
    p2c: bool
    span: int


class RelativePositions(NamedTuple):
    """The relative positions of a sequence's tokens.

    Attributes:
        rows: p, (J, D).
        places: j(t, s), (T, S).
    """

    rows: Tensor
    places: Tensor


class CollaborativeDisentangledAttention(CollaborativeSelfAttention):
    """Attention of a sequence to itself with disentangled positions; see the module.

    Attributes:
        terms: the terms of positions, or None.
        position_content: e, if ``p2c`` is among them.
    """

    native_names = {
        "query": "query_proj",
        "key": "key_proj",
        "value": "value_proj",
        "pos_dropout": "pos_dropout",
    }
    long_kinds = ()
    pos_dropout: nn.Module
    position_content: nn.Linear | None

    def __init__(self, native: Any, spec: AttentionSpec, config: Any) -> None:
        super().__init__(native, spec, config)
        self.terms = self.terms_of(native)
        # The native scale counts the terms of the config even if there are no relative positions.
        self.scaling = (self.attention_head_size * (1 + sum(term in native.pos_att_type for term in _TERMS))) ** -0.5
        self.position_content = None
        if self.heads and self.terms is not None and self.terms.p2c:
            self.position_content = nn.Linear(self.query.in_features, self.num_attention_heads, bias=False)

    @classmethod
    def terms_of(cls, native: Any) -> PositionTerms | None:
        """The terms of positions of a native layer; None if it has none."""
        if not native.relative_attention or not any(term in native.pos_att_type for term in _TERMS):
            return None
        c2p, p2c = (term in native.pos_att_type for term in _TERMS)
        return PositionTerms(c2p, p2c, native.pos_ebd_size)

    @classmethod
    def scores_input(cls, native: Any, given: dict[str, Any]) -> tuple[Any, Tensor | None]:
        return given["attention_mask"].bool(), None

    @classmethod
    def positions_input(cls, native: Any, given: dict[str, Any]) -> RelativePositions | None:
        terms = cls.terms_of(native)
        if terms is None:
            return None
        return cls._positions(given["rel_embeddings"], given["relative_pos"], terms.span)

    @staticmethod
    def _positions(rows: Tensor, relative: Tensor, span: int) -> RelativePositions:
        """The rows and their places from the relative embedding (2 · span, D) and the native buckets (1, T, S)."""
        # The native layer looks up the row of p2c at (s, t) with the opposite sign: the same one, for buckets are odd.
        index = (relative.squeeze(0) + span).clamp(0, 2 * span - 1)  # (T, S)
        first, last = 0, 2 * span
        if not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
            # A bucket is no larger than the distance, so short sequences use few rows.
            first, last = max(0, span - index.shape[0] + 1), min(last, span + index.shape[0])
        return RelativePositions(rows[first:last], index - first)

    def init_heads(
        self,
        normal: Callable[..., object],
        zeros: Callable[[Tensor], object],
        copy: Callable[[Tensor, Tensor], object],
    ) -> None:
        super().init_heads(normal, zeros, copy)
        if self.position_content is not None:
            zeros(self.position_content.weight)

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Any,
        output_attentions: bool = False,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the native layer; see `CollaborativeSelfAttention.forward`.

        Args:
            hidden_states: x = y, (B, T, D).
            attention_mask: (B, 1, T, S), not zero where a key is seen.
            output_attentions: whether to return attention weights.
            relative_pos: buckets of the tokens' distances, (1, T, S).
            rel_embeddings: rows by bucket, (2 · span, D).
            **kwargs: not used.
        """
        mask, _ = self.scores_input(self, {"attention_mask": attention_mask})
        positions = None
        if self.heads and self.terms is not None:
            assert rel_embeddings is not None
            assert relative_pos is not None
            positions = self._positions(self.pos_dropout(rel_embeddings), relative_pos, self.terms.span)
        return self.attend_to_itself(
            hidden_states, mask, None, positions=positions, output_attentions=output_attentions
        )

    def project_and_attend(
        self,
        queries: Tensor,
        keys: Tensor,
        value: Tensor,
        attention_mask: Any,
        position_bias: Tensor | None = None,
        positions: RelativePositions | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        projected, shared = self.project(queries, keys)
        key, content, bias = self.keys_by_head(shared), self.bias(keys), None
        if self.terms is not None:
            assert positions is not None
            bias = self._position_scores(projected, key, positions, self.terms) * self.scaling
            if content is not None and self.terms.p2c:
                content = 2 * content
        return self.attend(projected, key, value, content, attention_mask, bias, **kwargs)

    def _position_scores(
        self, projected: Tensor, key: Tensor, positions: RelativePositions, terms: PositionTerms
    ) -> Tensor:
        """The terms of positions before scaling, (B, H, T, S), without the content of the tokens.

        Args:
            projected: X W̃_Q, (B, T, R).
            key: (B, 1 or H, S, r).
            positions: see `RelativePositions`.
            terms: which terms.
        """
        rows, index = positions.rows.unsqueeze(0), positions.places  # (1, J, D), (T, S)
        scores: list[Tensor] = []
        contents: list[Tensor] = []  # (1, H, J)
        if terms.c2p:
            by_row = self._mixed(projected) @ self.keys(rows).mT  # (B, H, T, J)
            scores.append(by_row.gather(-1, index.expand(*by_row.shape[:-1], -1)))
            if self.content_bias is not None:
                contents.append(self.content_bias(rows).mT)
        if self.position_content is not None:
            by_row = self.queries(rows) @ key.mT  # (B, H, J, S)
            scores.append(by_row.gather(-2, index.expand(*by_row.shape[:2], -1, -1)))
            contents.append(self.position_content(rows).mT)
        if contents:
            scores.append(sum(contents[1:], contents[0])[..., index])
        return sum(scores[1:], scores[0])
