"""Collaborative attention with the constructor and the call of `torch.nn.MultiheadAttention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..decomposition import FormName, SolverOptions, form_named
from ..errors import ConfigurationError, RankError, ShapeError, UnsupportedArchitectureError
from ..modeling.collab_config import AttentionSpec
from ..modeling.collab_kernel import Scoring, attention_by_cost, eager_attention_forward, one_row
from ..modeling.collab_projections import SharedProjections
from ..reparametrization.layer import reparametrize, state_of
from .masks import merged_mask


class _NotATensor:
    """In place of the weights that torch's fused encoder reads: it leaves alone what overrides tensor functions."""

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> Any:
        raise TypeError(f"Collaborative attention has no in_proj_weight, which {function} reads.")


class MultiheadAttention(SharedProjections):
    """Multi-head attention with query and key projections shared by the heads.

    A drop-in for `torch.nn.MultiheadAttention`. Head h scores (x W̃_Q G_h + u_h) W̃_Kᵀ yᵀ / √d with d = E/H, whatever R
    is; the values are as in the original. The key of a token has R dimensions for all heads together (Cordonnier et al.
    2020, equation 9).

    Scores start with the variance of the original's: W̃_Q and W̃_K are drawn with the standard deviation that
    `torch.nn.MultiheadAttention` draws W_Q and W_K with; M is normal with variance d/R (``cp``), the cores with d/R²
    (``tucker``), and in the ``concat`` form, where head h has only r_h of the R dimensions, its part of both
    projections is multiplied by (d/r_h)^¼. Biases and u_h start at zero, and the output projection as the original's.
    `torch.nn.Transformer` draws every matrix anew, M too, so call `reset_parameters` after it.

    It works in `torch.nn.TransformerEncoderLayer` and `torch.nn.TransformerDecoderLayer`; assign it to ``self_attn`` or
    ``multihead_attn``. Their fused inference path, which would need in_proj_weight, is not taken, and nested tensors
    are refused; build `torch.nn.TransformerEncoder` with ``enable_nested_tensor=False``.

    Two things differ on purpose: a query that sees no key gives finite numbers, where the original may give NaN, and
    there are no ``add_bias_kv`` and ``add_zero_attn``.

    Args:
        embed_dim: E, width of the queries' inputs and of the output.
        num_heads: H.
        shared_dim: R, number of query/key dimensions that the heads share, from 1 to E; None means E. In the ``concat``
            form it may be a sequence: how many dimensions each head has.
        form: ``concat``, ``cp`` or ``tucker``.
        dropout: probability of dropping an attention weight in training.
        bias: whether there are the offsets u_h of the heads' queries, which do what the original's query bias does, and
            biases of values and output. A key bias has no effect on the softmax, so there is none.
        kdim: width of the keys' inputs; None means E.
        vdim: width of the values' inputs; None means E.
        batch_first: whether inputs and output are (B, T, E) and not (T, B, E).
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ConfigurationError: if an argument is out of range.
        RankError: if `shared_dim` is.
    """

    value: nn.Linear
    out_proj: nn.Linear

    # torch.nn.TransformerEncoderLayer and TransformerEncoder look at these before they take their fused path.
    in_proj_weight = _NotATensor()
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        shared_dim: int | Sequence[int] | None = None,
        form: FormName = "cp",
        *,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ConfigurationError(f"embed_dim {embed_dim} cannot be divided among {num_heads} heads.")
        if not 0 <= dropout <= 1:
            raise ConfigurationError(f"dropout must be from 0 to 1, not {dropout!r}.")
        kdim, vdim = kdim or embed_dim, vdim or embed_dim
        spec = _spec(shared_dim, form, bias, embed_dim, num_heads)
        super().__init__(spec, num_heads, embed_dim // num_heads, (embed_dim, kdim), content=bias)
        self.embed_dim, self.num_heads, self.kdim, self.vdim = embed_dim, num_heads, kdim, vdim
        self.dropout, self.batch_first = dropout, batch_first
        self.value = nn.Linear(vdim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()
        self.to(device=device, dtype=dtype)

    @property
    def shared_dim(self) -> int:
        """R."""
        return self.spec.rank

    @property
    def form(self) -> str:
        """``concat``, ``cp`` or ``tucker``."""
        return self.spec.form

    @property
    def head_dim(self) -> int:
        """d."""
        return self.attention_head_size

    @classmethod
    def from_native(
        cls,
        native: nn.MultiheadAttention,
        shared_dim: int | None = None,
        form: FormName = "cp",
        solver: SolverOptions | None = None,
    ) -> MultiheadAttention:
        """The collaborative layer that comes nearest to a native one, by its weights alone.

        At full width the outputs are the same up to rounding. Below it, train the result; `collab.reparametrize` gives
        the error of the same decomposition, and takes moments of real inputs too.

        Args:
            native: the layer to convert, which is not changed.
            shared_dim: R; None means E.
            form: ``concat``, ``cp`` or ``tucker``.
            solver: solver settings.

        Returns:
            A layer in the dtype and on the device of `native`, in the same mode. In the ``concat`` form its heads may
            have different widths; see its `head_ranks`.

        Raises:
            UnsupportedArchitectureError: if `native` adds keys of its own (``add_bias_kv``, ``add_zero_attn``).
            RankError: if `shared_dim` is not from 1 to E.
            WeightsError: if a weight is NaN or infinite.
        """
        if native.bias_k is not None or native.add_zero_attn:
            raise UnsupportedArchitectureError(
                "Layers with add_bias_kv or add_zero_attn do not convert: they add a key to those of the inputs."
            )
        weights = (
            (native.q_proj_weight, native.k_proj_weight, native.v_proj_weight)
            if native.in_proj_weight is None
            else native.in_proj_weight.chunk(3)
        )
        biases = (None, None, None) if native.in_proj_bias is None else native.in_proj_bias.chunk(3)
        factors = reparametrize(
            weights[0],
            biases[0],
            weights[1],
            biases[1],
            num_heads=native.num_heads,
            rank=_checked(native.embed_dim if shared_dim is None else shared_dim, native.embed_dim),
            form=form,
            content="folded",
            solver=solver,
        ).factors
        layer = cls(
            native.embed_dim,
            native.num_heads,
            factors.head_ranks or factors.rank,
            form,
            dropout=native.dropout,
            bias=biases[0] is not None,
            kdim=native.kdim,
            vdim=native.vdim,
            batch_first=native.batch_first,
            device=weights[0].device,
            dtype=weights[0].dtype,
        )
        state = state_of(factors) | {"value.weight": weights[2], "out_proj.weight": native.out_proj.weight}
        if biases[2] is not None:
            state |= {"value.bias": biases[2], "out_proj.bias": native.out_proj.bias}
        layer.load_state_dict(state)
        return layer.train(native.training)

    def reset_parameters(self) -> None:
        """Draws the parameters anew, as the class says."""
        # torch.nn.MultiheadAttention draws W_Q, W_K and W_V as one matrix of 3E rows if all inputs have one width.
        rows = self.embed_dim * (3 if self.kdim == self.vdim == self.embed_dim else 1)
        for projection in (self.query, self.key, self.value):
            bound = (6 / (rows + projection.in_features)) ** 0.5
            nn.init.uniform_(projection.weight, -bound, bound)
        with torch.no_grad():
            self.init_heads(nn.init.normal_, nn.init.zeros_, Tensor.copy_)
        self.out_proj.reset_parameters()
        for bias in (self.value.bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends, as `torch.nn.MultiheadAttention` does.

        Args:
            query: (T, B, E), or (B, T, E) if `batch_first`, or (T, E).
            key: (S, B, kdim), or (B, S, kdim), or (S, kdim).
            value: (S, B, vdim), or (B, S, vdim), or (S, vdim).
            key_padding_mask: (B, S), or (S,) without a batch; boolean, True where a key is hidden, or additive.
            need_weights: whether to return attention weights, which takes longer.
            attn_mask: (T, S) or (B·H, T, S); boolean, True where a key is hidden, or additive.
            average_attn_weights: whether the weights are averaged over the heads.
            is_causal: a hint that `attn_mask`, which must be given, hides later keys.

        Returns:
            The output, of the shape of `query`, and the weights (B, T, S), or (B, H, T, S) if not averaged, or None;
            without the first axis for inputs without a batch.

        Raises:
            ShapeError: if the shapes do not fit, or an input is a nested tensor.
            ConfigurationError: if a mask is neither boolean nor of floating point, or is missing.
        """
        _check_inputs(query, key, value, (self.embed_dim, self.kdim, self.vdim), self.batch_first)
        if is_causal and attn_mask is None:
            raise ConfigurationError("is_causal=True says that attn_mask is causal; give attn_mask too.")
        batched = query.ndim == 3
        if not batched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        shape = (query.shape[0], self.num_heads, query.shape[1], key.shape[1])  # (B, H, T, S)
        mask = merged_mask(attn_mask, key_padding_mask, shape, query.dtype)
        # Kernels need no mask to hide later keys; for a single query they take all keys for earlier ones.
        if is_causal and key_padding_mask is None and query.shape[1] > 1:
            mask = None
        projected, keys = self.query(query), self.keys(key)  # (B, T, R), (B, 1 or H, S, r)
        values = self.value(value).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, S, d)
        dropout = self.dropout if self.training else 0.0
        scoring = Scoring(None, one_row(mask), None, self.scaling, dropout, is_causal)
        mix = self.mixer(projected.dtype)
        weights: Tensor | None = None
        if need_weights:
            queries = mix(projected.unsqueeze(1), None)  # (B, H, T, r)
            added = scoring.added(queries, keys)
            context, weights = eager_attention_forward(self, queries, keys, values, added, self.scaling, dropout)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            context = attention_by_cost(mix, projected, keys, values, scoring)
        output = self.out_proj(context.flatten(-2))  # (B, T, E)
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def extra_repr(self) -> str:
        """The settings that `repr` shows besides the parts."""
        return f"{self.embed_dim}, {self.num_heads}, {self.head_ranks or self.shared_dim}, {self.form!r}"


def _spec(
    shared_dim: int | Sequence[int] | None, form: FormName, bias: bool, embed_dim: int, num_heads: int
) -> AttentionSpec:
    head_ranks = tuple(shared_dim) if isinstance(shared_dim, Sequence) else None
    if head_ranks is not None and (not form_named(form).separate or len(head_ranks) != num_heads):
        raise RankError(f"shared_dim may be a sequence of {num_heads} numbers in the concat form only.")
    rank = embed_dim if shared_dim is None else shared_dim if head_ranks is None else sum(head_ranks)
    try:
        return AttentionSpec(form, _checked(rank, embed_dim), head_ranks, "folded" if bias else "none")
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _checked(rank: Any, embed_dim: int) -> int:
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= embed_dim:
        raise RankError(f"shared_dim must be a whole number from 1 to embed_dim, which is {embed_dim}, not {rank!r}.")
    return rank


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, widths: tuple[int, int, int], batch_first: bool) -> None:
    """Raises a ShapeError if inputs do not fit each other or the layer's E, kdim and vdim."""
    if query.is_nested or key.is_nested or value.is_nested:
        raise ShapeError(
            "Nested tensors are not supported. Pad the inputs and give key_padding_mask; "
            "torch.nn.TransformerEncoder makes none with enable_nested_tensor=False."
        )
    if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
        raise ShapeError(
            "query, key and value must all have three axes, or all two without a batch, not "
            f"{query.ndim}, {key.ndim} and {value.ndim}."
        )
    if key.shape[:-1] != value.shape[:-1]:
        raise ShapeError(
            f"There must be a value for each key: the shapes are {tuple(value.shape)} and {tuple(key.shape)}."
        )
    if (query.shape[-1], key.shape[-1], value.shape[-1]) != widths:
        raise ShapeError(
            f"query, key and value must be {widths[0]}, {widths[1]} and {widths[2]} wide (embed_dim, kdim, vdim), not "
            f"{query.shape[-1]}, {key.shape[-1]} and {value.shape[-1]}."
        )
    batch = 0 if batch_first else 1
    if query.ndim == 3 and query.shape[batch] != key.shape[batch]:
        raise ShapeError(
            f"query and key must have the same batch size, not {query.shape[batch]} and {key.shape[batch]}: their "
            f"shapes are {tuple(query.shape)} and {tuple(key.shape)}, and batch_first is {batch_first}."
        )
