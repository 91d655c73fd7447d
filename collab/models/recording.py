"""Recording of what enters and leaves attention layers while a model runs."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from .layers import AttentionLayer
from .padding import query_mask, seen_tokens
from .states import unfused_attention

Part = Literal["values", "context", "weights"]
"""A tensor of a pass: the values, the input of W_O, or the attention weights."""


class LayerPass:
    """One pass of an attention layer; a layer that the model applies several times (ALBERT) has several.

    Attributes:
        layer: the layer.
        given: the arguments of its forward by name.
        values: (B, S, K), if they were asked for, like the next two.
        context: input of W_O, (B, T, K).
        weights: attention weights, (B, H, T, S).
    """

    values: Tensor
    context: Tensor
    weights: Tensor

    def __init__(self, layer: AttentionLayer, given: dict[str, Any]) -> None:
        self.layer = layer
        self.given = given

    @property
    def queries(self) -> Tensor:
        """The states x that queries are computed from, (B, T, D_q)."""
        return self.given["hidden_states"]

    @property
    def keys(self) -> Tensor:
        """The states y that keys are computed from, (B, S, D_k); the same tensor if a sequence attends to itself."""
        return self.layer.collaborative.keys_input(self.layer.module, self.given)

    @property
    def positions(self) -> Any:
        """See `CollaborativeAttention.positions_input`; of a native layer."""
        return self.layer.collaborative.positions_input(self.layer.module, self.given)

    def scores_input(self) -> tuple[Any, Tensor | None]:
        """See `CollaborativeAttention.scores_input`; of a native layer."""
        return self.layer.collaborative.scores_input(self.layer.module, self.given)

    def seen(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Tokens with queries that are not padding in the model's inputs; see `seen_tokens`."""
        return seen_tokens(query_mask(batch, self.layer.kind), self.queries)


@contextlib.contextmanager
def recording(
    layers: Iterable[AttentionLayer], visit: Callable[[LayerPass], None], *parts: Part, graph: bool = False
) -> Iterator[None]:
    """Calls `visit` with every pass of some layers inside the context, as soon as it has the parts asked for.

    Args:
        layers: the layers; for weights, of a model with `eager_attention`.
        visit: may keep the pass; an exception that it raises ends the run of the model.
        *parts: what to record beside the arguments.
        graph: whether a graph of gradients starts at the first layer, in a model without trainable weights.
    """
    layers = list(layers)
    with contextlib.ExitStack() as hooks:
        hooks.enter_context(unfused_attention(layers))
        for layer in layers:
            for handle in _hooks(layer, visit, parts, graph):
                hooks.enter_context(handle)
        yield


def _hooks(
    layer: AttentionLayer, visit: Callable[[LayerPass], None], parts: tuple[Part, ...], graph: bool
) -> Iterator[RemovableHandle]:
    """Adds the hooks on one layer; arguments as in `recording`."""
    current: list[LayerPass] = []  # the pass that the layer is in, if any

    def enter(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if graph and layer.kind == "cross":
            # The gradients by an encoder's states are added up in each layer before those of all layers are, so that
            # they are rounded alike whether a layer is sharded, which does that, or not.
            args, kwargs = tree_map_only(Tensor, _passed_on, (args, kwargs))
        bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        current[:] = [LayerPass(layer, bound | bound.get("kwargs", {}))]
        if graph and not current[0].queries.requires_grad:
            current[0].queries.requires_grad_(True)
        return args, kwargs

    def add(part: Part, tensor: Tensor) -> None:
        if current:
            setattr(current[0], part, tensor)
            if all(hasattr(current[0], part) for part in parts):
                visit(current.pop())

    yield layer.module.register_forward_pre_hook(enter, with_kwargs=True)
    if "values" in parts:
        name = layer.name_of("value")
        roles = layer.roles_of(name)
        place, value = roles.index("value"), getattr(layer.module, name)
        yield value.register_forward_hook(
            lambda module, args, output: add("values", output.chunk(len(roles), dim=-1)[place])
        )
    if "context" in parts:
        yield layer.output.register_forward_pre_hook(lambda module, args: add("context", args[0]))
    if "weights" in parts:
        index = layer.collaborative.native_weights
        yield layer.module.register_forward_hook(lambda module, args, output: add("weights", output[index]))


def _passed_on(tensor: Tensor) -> Tensor:
    """A tensor with a place of its own in the graph of gradients."""
    return tensor.view_as(tensor) if tensor.requires_grad else tensor
