"""How a family keeps its native attention layer: what it is called, what it computes from, what it is called with.

The notation is that of `collab_attention`.

This file is copied into every exported model; it imports only torch and transformers.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

LayerKind = Literal["encoder", "decoder", "cross"]
"""Attention of a sequence to itself in an encoder, or causal in a decoder; or of a decoder to another sequence."""


class NativeAttention:
    """Reads the native layer of a family, as its attributes and methods say; base of the family's collaborative layer.

    Class attributes:
        native_names: the family's names of ``query``, ``key``, ``value`` and other parts of the native layer that are
            kept (``dense``, ``LayerNorm``), by the name that they have here. Of the names that several of ``query``,
            ``key`` and ``value`` share, the native module computes all of them: its rows are theirs, equally many and
            in this order.
        sibling_output: where the block around the layer keeps the output projection, if the layer does not own it.
        native_heads: the native layer's attribute for H.
        native_dropout: the native layer's attribute for the dropout on attention weights, a number or a module.
        native_weights: index of the attention weights in what the native layer returns.
        native_forward: a function for the native layer's forward where its own does not return the weights of each
            head, not even with the ``eager`` kernel, or reads the weights of its projections without calling them.
        crosses: whether a layer of this class may take its keys from another sequence.
    """

    native_names: ClassVar[dict[str, str]] = {"query": "query", "key": "key", "value": "value"}
    sibling_output: ClassVar[str] = "output.dense"
    native_heads: ClassVar[str] = "num_attention_heads"
    native_dropout: ClassVar[str] = "dropout"
    native_weights: ClassVar[int] = 1
    native_forward: ClassVar[Callable[..., Any] | None] = None
    crosses: ClassVar[bool] = False

    @classmethod
    def output_name(cls, name: str) -> str:
        """Module name of the output projection W_O in a collaborative model, for the layer called `name`."""
        return f"{name}.dense" if "dense" in cls.native_names else f"{name.rpartition('.')[0]}.{cls.sibling_output}"

    @classmethod
    def roles_of(cls, native_name: str) -> list[str]:
        """The names here of a native layer's module or parameter; several if it is fused, in their order."""
        return [role for role, name in cls.native_names.items() if name == native_name]

    @classmethod
    def heads_of(cls, native: Any) -> int:
        """H of a native layer."""
        return getattr(native, cls.native_heads)

    @classmethod
    def native_projection(cls, native: Any, role: str) -> nn.Linear:
        """A native layer's ``query``, ``key`` or ``value`` projection; of a fused one a view of its rows."""
        whole = as_linear(getattr(native, cls.native_names[role]))
        roles = cls.roles_of(cls.native_names[role])
        if len(roles) == 1:
            return whole
        number = roles.index(role)
        bias = whole.bias is not None
        part = nn.Linear(whole.in_features, whole.out_features // len(roles), bias=bias, device="meta")
        for name, tensor in whole.named_parameters():
            rows = tensor.detach().chunk(len(roles))[number]
            setattr(part, name, nn.Parameter(rows, requires_grad=tensor.requires_grad))
        return part

    @classmethod
    def kind_of(cls, native: Any) -> LayerKind:
        """The kind of a native layer."""
        if cls.crosses:
            return "cross"
        return "decoder" if getattr(native, "is_causal", False) else "encoder"

    @classmethod
    def keys_input(cls, native: Any, given: dict[str, Any]) -> Tensor:
        """The states y, (B, S, D_k), that a native layer computes its keys from; arguments as for `scores_input`."""
        return given["hidden_states"]

    @classmethod
    def scores_input(cls, native: Any, given: dict[str, Any]) -> tuple[Any, Tensor | None]:
        """The mask and the position bias, as for `attend`, that a native layer was called with.

        Args:
            native: the native layer.
            given: the arguments of its forward by name.
        """
        return given.get("attention_mask"), given.get("position_bias")

    @classmethod
    def positions_input(cls, native: Any, given: dict[str, Any]) -> Any:
        """The argument of a native layer that tells positions apart in queries and keys; None if there is none.

        Args:
            native: the native layer.
            given: the arguments of its forward by name.
        """
        return None


def as_linear(module: Any) -> Any:
    """GPT-2's `Conv1D` as a linear layer with a copy of its weight, which it stores transposed; others unchanged."""
    if not isinstance(module, Conv1D):
        return module
    linear = nn.Linear(module.nx, module.nf, device="meta")
    weight = module.weight.detach().T.contiguous()  # (out, in)
    linear.weight = nn.Parameter(weight, requires_grad=module.weight.requires_grad)
    linear.bias = module.bias
    return linear
