"""A step of writing: one token of each row, without gradients, on a CPU.

A step of few rows takes the time of reading its weights and of its calls, so there are as few calls as possible, and
weights are read by the product that is fastest at it. `benchmarks/generation.py` measures the steps, and
`benchmarks/few_rows.py` the products. The notation is that of `collab_kernel`.

This file is copied into every exported model; it imports only torch, transformers and its own folder.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from .collab_kernel import additive_bias, additive_mask, is_copied, is_recorded, product_by_head

FEW, SMALL = 8, 2**12
"""Tokens, and numbers in their states, up to which a product in parts of the weight is faster in float32 than that of
`torch.nn.functional.linear`: the states leave room for the weight in the first-level cache of a core."""

NOT_MANY = 32
"""Tokens up to which torch leaves the product to a single thread, so that a part for each thread is faster."""

LARGE = 2**18
"""Numbers of a weight from which that is so: smaller ones are often in the caches already, and the calls take longer
than the product."""


def linear_by_cost(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear`, without gradients in the way that is fastest for so few tokens; within rounding.

    For a few tokens in float32, the product that torch calls takes up to four times as long as a batch of products of
    parts of the weight, by the same library and from the same memory.

    Args:
        states: (..., D).
        weight: (outputs, D).
        bias: (outputs,) or None.

    Returns:
        (..., outputs).
    """
    if not _is_step(states, weight):
        return functional.linear(states, weight, bias)
    outputs, inputs = weight.shape
    tokens, threads = states.shape[:-1].numel(), torch.get_num_threads()
    if tokens > FEW or states.numel() > SMALL:
        return functional.linear(states, weight, bias) if threads == 1 else _among_threads(states, weight.T, bias)
    parts = max(2, threads)
    divided = outputs // parts * parts  # all rows but a few, where the parts cannot be equal
    rows = weight[:divided].view(parts, divided // parts, inputs)  # (parts, outputs / parts, D)
    columns = states.reshape(tokens, inputs).T.expand(parts, -1, -1)  # (parts, D, tokens)
    if bias is None:
        product = torch.bmm(rows, columns)
    else:
        product = torch.baddbmm(bias[:divided].view(parts, divided // parts, 1), rows, columns)
    product = product.view(divided, tokens).T  # (tokens, divided)
    return _with_rest(product, columns[0].T, weight, bias).reshape(*states.shape[:-1], outputs)


def conv1d_by_cost(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same for GPT-2's `Conv1D` of transformers.

    Args:
        states: (..., D).
        weight: (D, outputs).
        bias: (outputs,).

    Returns:
        (..., outputs).
    """
    if _is_step(states, weight) and torch.get_num_threads() > 1:
        return _among_threads(states, weight, bias)
    product = torch.addmm(bias, states.reshape(-1, weight.shape[0]), weight)  # (tokens, outputs)
    return product.view(*states.shape[:-1], weight.shape[1])


def _among_threads(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A product with a part of the outputs for each thread.

    Args:
        states: (..., D).
        weight: (D, outputs), of any strides.
        bias: (outputs,) or None.

    Returns:
        (..., outputs).
    """
    inputs, outputs = weight.shape
    parts = torch.get_num_threads()
    divided = outputs // parts * parts
    rows = states.reshape(-1, inputs)  # (tokens, D)
    columns = weight[:, :divided].unflatten(1, (parts, divided // parts)).transpose(0, 1)  # (parts, D, outputs / parts)
    every = rows.expand(parts, -1, -1)  # (parts, tokens, D)
    if bias is None:
        product = torch.bmm(every, columns)
    else:
        product = torch.baddbmm(bias[:divided].view(parts, 1, divided // parts), every, columns)
    product = product.transpose(0, 1).reshape(len(rows), divided)  # (tokens, divided)
    return _with_rest(product, rows, weight.T, bias).view(*states.shape[:-1], outputs)


def _with_rest(product: Tensor, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A product with the outputs that were left over, because their number is not a multiple of the parts.

    Args:
        product: of the first outputs, (tokens, divided).
        states: (tokens, D).
        weight: (outputs, D).
        bias: (outputs,) or None.

    Returns:
        (tokens, outputs).
    """
    divided = product.shape[1]
    if divided == len(weight):
        return product
    rest = functional.linear(states, weight[divided:], None if bias is None else bias[divided:])
    return torch.cat([product, rest], dim=1)


def _is_step(states: Tensor, weight: Tensor) -> bool:
    """Whether a product is of few enough tokens and a large weight, and may be computed in parts on this CPU."""
    if is_recorded():  # whose sizes may be symbols
        return False
    if weight.numel() < LARGE:
        return False
    return (
        0 < states.shape[:-1].numel() <= NOT_MANY
        and not torch.is_grad_enabled()
        and states.dtype == weight.dtype == torch.float32
        and type(weight) in (Tensor, nn.Parameter)
        and weight.is_contiguous()
        and states.device.type == weight.device.type == "cpu"
        and torch.backends.mkl.is_available()
        and not torch.is_autocast_enabled("cpu")
    )


class LinearByCost(nn.Linear):
    """A linear layer that computes few tokens faster; otherwise the same as its base class."""

    def forward(self, states: Tensor) -> Tensor:
        """(..., D) → (..., outputs)."""
        return linear_by_cost(states, self.weight, self.bias)


class Conv1DByCost(Conv1D):
    """A linear layer of GPT-2's kind that computes few tokens faster; otherwise the same as its base class."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) → (..., outputs)."""
        return conv1d_by_cost(x, self.weight, self.bias)


_BY_COST: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: LinearByCost, Conv1D: Conv1DByCost}

PLAIN, PLAIN_CONV1D = (nn.Linear, LinearByCost), (Conv1D, Conv1DByCost)
"""The classes of linear layers without anything added to them, such as quantization or adapters."""


def compute_by_cost(model: nn.Module) -> None:
    """Has every linear layer of a model, the vocabulary's included, compute few tokens by cost.

    The layers stay the objects that they are, with their parameters.
    """
    for layer in model.modules():
        if type(layer) in _BY_COST:
            layer.__class__ = _BY_COST[type(layer)]


class SideBySide:
    """Linear layers of the same input, computed by one product.

    Their parameters become parts of one tensor, as those of `torch.nn.RNN` do by its ``flatten_parameters``: they keep
    their values, and what is changed in place is changed here too. Each has a storage of its own, as those who write
    parameters to a file expect.

    Args:
        layers: as `side_by_side` accepts them; those without a bias get zeros if another has one.
        offset: what is added to the outputs of the first layer, (1, its width), if that has no bias; or None.
    """

    @torch.inference_mode(False)  # whose tensors could not be trained afterwards
    def __init__(self, layers: Sequence[nn.Linear], offset: nn.Parameter | None) -> None:
        self.layers = layers
        self.widths = [layer.out_features for layer in layers]
        self.weight = torch.cat([layer.weight.detach() for layer in layers])  # (widths together, D)
        biases = [layer.bias for layer in layers]
        if offset is not None:
            biases[0] = offset
        self.bias = None
        if any(bias is not None for bias in biases):
            self.bias = self.weight.new_zeros(len(self.weight))
        places = iter([] if self.bias is None else self.bias.split(self.widths))
        for layer, bias, rows in zip(layers, biases, self.weight.split(self.widths), strict=True):
            layer.weight.data = torch.from_dlpack(rows)
            place = next(places, None)
            if bias is not None and place is not None:
                bias.data = torch.from_dlpack(place.view(bias.shape).copy_(bias.detach()))
        self.places = _places(layers, offset)

    def __call__(self, states: Tensor) -> tuple[Tensor, ...]:
        """The outputs of each layer, (B, T, its width), of states (B, T, D)."""
        return linear_by_cost(states, self.weight, self.bias).split(self.widths, dim=-1)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a copy of a model lays its own weights side by side


def side_by_side(
    known: SideBySide | None, layers: Sequence[nn.Module], offset: Tensor | None = None
) -> SideBySide | None:
    """Layers as one product: the known one as long as it is theirs, or a new one.

    None unless all are linear layers of torch itself with weights of the same kind, and nothing looks at their calls.

    Args:
        known: what an earlier call returned for these layers.
        layers: the layers.
        offset: as `SideBySide` takes it.
    """
    places = _places(layers, offset)
    if places is None or (known is not None and known.layers == layers and known.places == places):
        return None if places is None else known
    plain = all(type(layer) in PLAIN and type(layer.weight) is nn.Parameter for layer in layers)
    kinds = {(layer.weight.dtype, layer.weight.device) for layer in layers}
    if not (plain and len(kinds) == 1 and (offset is None or type(offset) is nn.Parameter)):
        return None
    return SideBySide(cast("Sequence[nn.Linear]", layers), offset)


def _places(layers: Sequence[nn.Module], offset: Tensor | None) -> list[int] | None:
    """Where the parameters of these layers are, and their offset; None if something looks at a layer's calls."""
    places = [] if offset is None else [offset.data_ptr()]
    for layer in layers:
        if layer._forward_hooks or layer._forward_pre_hooks or "forward" in layer.__dict__:
            return None
        for parameter in layer._parameters.values():  # without the time that a module's attributes take
            if parameter is not None:
                places.append(parameter.data_ptr())
    return places


def attention_of_one_token(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    content: Tensor | None,
    mask: Tensor | None,
    position_bias: Tensor | None,
    scaling: float,
) -> Tensor:
    """Attention of one query token of each row, without its weights.

    Heads that share a key, or a value, are the rows of one product with it, which also adds what is added to scores.
    These products take less time than a fused kernel.

    Args:
        query: (B, H, r), mixed.
        key: (B, K, S, r), each for H / K neighbouring heads.
        value: (B, groups, S, d), each for H / groups neighbouring heads.
        content: (B, H, S), before scaling, or None.
        mask: None; boolean, True where a key is seen; or additive; broadcast to (B, H, 1, S).
        position_bias: additive, scaled, (1 or B, H, 1, S), or None.
        scaling: 1/√d.

    Returns:
        (B, 1, H·d).
    """
    batch, heads, width = query.shape
    keys, seen = key.shape[1:3]
    added, weight = content, scaling  # what is added to the scores, times its weight
    if mask is not None or position_bias is not None:
        bias = additive_bias(content, position_bias, scaling)
        every = additive_mask(bias, mask, False, query.unsqueeze(2), key)  # broadcast to (B, H, 1, S)
        if every is not None:
            added, weight = every.squeeze(2).expand(batch, heads, seen), 1.0
    rows = query.reshape(batch * keys, -1, width)  # (B·K, H / K, r)
    columns = key.flatten(0, 1).mT  # (B·K, r, S)
    if added is None:
        scores = torch.bmm(rows * scaling, columns)  # (B·K, H / K, S)
    else:
        scores = torch.baddbmm(added.reshape(len(rows), -1, seen), rows, columns, beta=weight, alpha=scaling)
    weights = scores.softmax(-1).view(batch, value.shape[1], -1, seen)  # (B, groups, H / groups, S)
    if is_copied(value):
        return product_by_head(weights, value).reshape(batch, 1, -1)
    return torch.bmm(weights.flatten(0, 1), value.flatten(0, 1)).view(batch, 1, -1)
