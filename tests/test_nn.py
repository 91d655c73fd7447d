"""`collab.nn.MultiheadAttention` against `torch.nn.MultiheadAttention`, and within what torch builds on that."""

from __future__ import annotations

import copy
import io
import re
import warnings
from typing import Any

import pytest
import torch
from tiny import every_form, often
from torch import Tensor, nn

import collab
from collab.decomposition import FORMS
from collab.nn import MultiheadAttention

B, T, S, E, H = 2, 6, 5, 24, 4
NARROW: dict[str, Any] = {"concat": (3, 0, 5, 2), "cp": 7, "tucker": 5}
"""A shared width below E for each form."""


def native(seed: int = 0, **arguments: Any) -> nn.MultiheadAttention:
    """A layer of torch's whose weights and biases matter."""
    torch.manual_seed(seed)
    layer = nn.MultiheadAttention(E, H, **arguments)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer.eval()


def narrow(form: str, **arguments: Any) -> MultiheadAttention:
    """A layer below full width whose parameters all matter."""
    torch.manual_seed(1)
    layer = MultiheadAttention(E, H, NARROW[form], form, **arguments)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer.eval()


def masks(kind: str, seen: int = T) -> dict[str, Tensor]:
    """Masks by argument; every query sees a key."""
    hidden = torch.zeros(T, seen, dtype=torch.bool)
    hidden[1:4, 2:] = True
    by_head = torch.rand(B * H, T, seen) < 0.4
    by_head[..., 0] = False
    padding = torch.zeros(B, seen, dtype=torch.bool)
    padding[1, 3:] = True
    added, added_padding = torch.randn(T, seen), torch.randn(B, seen).masked_fill(padding, float("-inf"))
    return {
        "none": {},
        "bool": {"attn_mask": hidden},
        "added": {"attn_mask": added},
        "infinite": {"attn_mask": added.masked_fill(hidden, float("-inf"))},
        "by head": {"attn_mask": by_head},
        "added by head": {"attn_mask": torch.randn(B * H, T, seen)},
        "padding": {"key_padding_mask": padding},
        "added padding": {"key_padding_mask": added_padding},
        "both": {"attn_mask": hidden, "key_padding_mask": padding},
        "both added": {"attn_mask": added, "key_padding_mask": added_padding},
        "by head and padding": {"attn_mask": by_head, "key_padding_mask": padding},
    }[kind]


MASKS = [
    *("none", "bool", "added", "infinite", "by head", "added by head", "padding", "added padding", "both"),
    *("both added", "by head and padding"),
]


def same(actual: Any, expected: Any, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


class TestAgainstTorch:
    """From converted weights at full width."""

    @every_form
    @pytest.mark.parametrize("mask", MASKS)
    @pytest.mark.parametrize("gradients", [False, True])  # which decides what kernels there are
    def test_every_mask(self, form: str, mask: str, gradients: bool) -> None:
        original = native(batch_first=True)
        layer = MultiheadAttention.from_native(original, form=form)
        x, given = torch.randn(B, T, E), masks(mask)
        with torch.set_grad_enabled(gradients):
            expected, weights = original(x, x, x, average_attn_weights=False, **given)
            output, actual_weights = layer(x, x, x, average_attn_weights=False, **given)
            same(output, expected)
            same(actual_weights, weights)
            same(layer(x, x, x, **given)[1], original(x, x, x, **given)[1])
            output, nothing = layer(x, x, x, need_weights=False, **given)
            same(output, expected)
            assert nothing is None

    @every_form
    @pytest.mark.parametrize("mask", ["none", "bool", "by head", "both added"])
    @pytest.mark.parametrize("batch_first", [False, True])
    @pytest.mark.parametrize("widths", [{}, {"kdim": 10, "vdim": 14}, {"vdim": 14}])
    def test_cross_attention(self, form: str, mask: str, batch_first: bool, widths: dict[str, int]) -> None:
        original = native(batch_first=batch_first, **widths)
        layer = MultiheadAttention.from_native(original, form=form)
        x, y = torch.randn(B, T, E), torch.randn(B, S, widths.get("kdim", E))
        z, given = torch.randn(B, S, widths.get("vdim", E)), masks(mask, S)
        inputs = (x, y, z) if batch_first else (x.transpose(0, 1), y.transpose(0, 1), z.transpose(0, 1))
        for need_weights in (False, True):
            expected, actual = (each(*inputs, need_weights=need_weights, **given) for each in (original, layer))
            same(actual[0], expected[0])
            assert actual[0].shape == inputs[0].shape
            same(actual[1], expected[1])

    @every_form
    @pytest.mark.parametrize("batch_first", [False, True])
    @pytest.mark.parametrize("average", [False, True])
    def test_inputs_without_a_batch(self, form: str, batch_first: bool, average: bool) -> None:
        original = native(batch_first=batch_first)
        layer = MultiheadAttention.from_native(original, form=form)
        x, y = torch.randn(T, E), torch.randn(S, E)
        given = {
            "attn_mask": masks("by head", S)["attn_mask"][:H],
            "key_padding_mask": torch.arange(S) == S - 1,
            "average_attn_weights": average,
        }
        for actual, expected in zip(layer(x, y, y, **given), original(x, y, y, **given), strict=True):
            same(actual, expected)
        assert layer(x, y, y, need_weights=False)[0].shape == (T, E)

    @every_form
    @pytest.mark.parametrize("padded", [False, True])
    @pytest.mark.parametrize("need_weights", [False, True])
    def test_causal(self, form: str, padded: bool, need_weights: bool) -> None:
        original = native(batch_first=True)
        layer, x = MultiheadAttention.from_native(original, form=form), torch.randn(B, T, E)
        given: dict[str, Any] = {
            "attn_mask": nn.Transformer.generate_square_subsequent_mask(T),
            "is_causal": True,
            "need_weights": need_weights,
            "key_padding_mask": masks("added padding")["key_padding_mask"] if padded else None,
        }
        same(layer(x, x, x, **given), original(x, x, x, **given))
        given["attn_mask"] = given["attn_mask"][3:4]  # of one query, which sees four keys
        expected = original(x[:, 3:4], x, x, **given | {"is_causal": False})  # torch would take it for the first one
        same(layer(x[:, 3:4], x, x, **given), expected)

    @every_form
    def test_without_biases(self, form: str) -> None:
        original = native(bias=False)
        layer, x = MultiheadAttention.from_native(original, form=form), torch.randn(T, B, E)
        same(layer(x, x, x), original(x, x, x))
        assert not [name for name in layer.state_dict() if "bias" in name or "offset" in name]

    @torch.no_grad()
    def test_below_full_width_the_factors_are_those_of_reparametrize(self) -> None:
        original, x = native(), torch.randn(T, B, E)
        expected, _ = original(x, x, x)
        outputs = [MultiheadAttention.from_native(original, rank)(x, x, x)[0] for rank in (4, 12, 20)]
        errors = [float((output - expected).norm()) for output in outputs]
        assert errors == sorted(errors, reverse=True)
        query, key, _ = original.in_proj_weight.chunk(3)
        bias, _, _ = original.in_proj_bias.chunk(3)
        solution = collab.reparametrize(query, bias, key, num_heads=H, rank=12, form="cp", content="folded")
        layer = MultiheadAttention.from_native(original, 12)
        same(layer.mixing, solution.factors.mixing)
        same(layer.query_offset, solution.factors.query_offset)

    def test_conversion_keeps_what_a_layer_is(self) -> None:
        original = native(batch_first=True, dropout=0.25, dtype=torch.float64).train()
        before = copy.deepcopy(original.state_dict())
        layer = MultiheadAttention.from_native(original, 8)
        assert layer.training
        assert (layer.dropout, layer.batch_first, layer.embed_dim, layer.num_heads) == (0.25, True, E, H)
        assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}
        layer.out_proj.weight.data.zero_()
        assert all(torch.equal(tensor, before[name]) for name, tensor in original.state_dict().items())
        assert not MultiheadAttention.from_native(original.eval(), 8).training

    @pytest.mark.parametrize("argument", ["add_bias_kv", "add_zero_attn"])
    def test_keys_that_are_no_inputs_do_not_convert(self, argument: str) -> None:
        with pytest.raises(collab.errors.UnsupportedArchitectureError, match="add a key"):
            MultiheadAttention.from_native(native(**{argument: True}))


class TestStart:
    """A layer as its constructor makes it."""

    @pytest.mark.parametrize("shared_dim", [16, 64, 256])
    @every_form
    @torch.no_grad()
    def test_scores_have_the_variance_of_the_original(self, form: str, shared_dim: int) -> None:
        torch.manual_seed(0)
        width, heads = 256, 8
        x = torch.randn(64, width)
        for widths in ({}, {"kdim": 96}):
            y = torch.randn(64, widths.get("kdim", width))
            actual, expected = [], []
            for _ in range(10):
                layer = MultiheadAttention(width, heads, shared_dim, form, **widths)
                scores = layer.queries(x[None]) @ layer.keys(y[None]).mT * layer.scaling  # (1, H, T, S)
                actual.append(scores.var())
                original = nn.MultiheadAttention(width, heads, **widths)
                split = original.in_proj_weight is not None
                query = original.in_proj_weight[:width] if split else original.q_proj_weight
                key = original.in_proj_weight[width : 2 * width] if split else original.k_proj_weight
                q, k = ((z @ w.T).unflatten(-1, (heads, -1)).transpose(0, 1) for z, w in ((x, query), (y, key)))
                expected.append((q @ k.mT * layer.scaling).var())
            assert torch.stack(actual).mean() == pytest.approx(torch.stack(expected).mean().item(), rel=0.1)

    @every_form
    @torch.no_grad()
    def test_values_and_outputs_start_as_those_of_the_original(self, form: str) -> None:
        layer, original = MultiheadAttention(256, 8, 32, form), nn.MultiheadAttention(256, 8)
        assert layer.value.weight.std() == pytest.approx(original.in_proj_weight.std().item(), rel=0.05)
        assert layer.out_proj.weight.std() == pytest.approx(original.out_proj.weight.std().item(), rel=0.05)
        for name in ("value.bias", "out_proj.bias", "query_offset"):
            assert not layer.state_dict()[name].any()

    @every_form
    def test_the_shared_width_sets_the_size(self, form: str) -> None:
        layer = MultiheadAttention(E, H, 6, form)
        sizes = {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}
        assert sizes["query.weight"] == sizes["key.weight"] == (6, E)
        assert sizes.get("mixing") == {"concat": None, "cp": (H, 6), "tucker": (H, 6, 6)}[form]
        assert MultiheadAttention(E, H, form=form).shared_dim == E
        assert repr(layer).startswith("MultiheadAttention(\n  24, 4, ")

    @every_form
    def test_a_state_dict_fits_a_new_layer(self, form: str) -> None:
        layer, x = narrow(form, dtype=torch.float64), torch.randn(T, B, E, dtype=torch.float64)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        again = MultiheadAttention(E, H, NARROW[form], form, dtype=torch.float64).eval()
        again.load_state_dict(torch.load(file, weights_only=True))
        same(again(x, x, x), layer(x, x, x), tolerance=0)
        converted = MultiheadAttention.from_native(native(), 10, form)
        fitting = MultiheadAttention(E, H, converted.head_ranks or 10, form)
        fitting.load_state_dict(converted.state_dict())

    @torch.no_grad()
    def test_a_layer_made_without_memory_is_initialized_later(self) -> None:
        layer = MultiheadAttention(E, H, 6, device="meta")
        assert {parameter.device.type for parameter in layer.parameters()} == {"meta"}
        layer.to_empty(device="cpu")
        torch.manual_seed(3)
        layer.reset_parameters()
        assert layer.mixing.std() == pytest.approx((E / H / 6) ** 0.5, rel=0.4)
        assert not layer.query_offset.any()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"shared_dim": 0}, "from 1 to embed_dim, which is 24, not 0"),
            ({"shared_dim": 25}, "not 25"),
            ({"shared_dim": 0.1}, "whole number"),  # what is the dropout in torch's
            ({"shared_dim": True}, "whole number"),
            ({"shared_dim": (1, 2, 3, 4)}, "concat form only"),
            ({"shared_dim": (1, 2, 3), "form": "concat"}, "sequence of 4 numbers"),
            ({"shared_dim": (-1, 2, 3, 4), "form": "concat"}, "must not be negative"),
            ({"form": "svd"}, "Unknown form 'svd'"),
            ({"num_heads": 5}, "cannot be divided among 5 heads"),
            ({"dropout": 2.0}, "from 0 to 1"),
        ],
    )
    def test_bad_arguments(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(collab.errors.ConfigurationError, match=message):
            MultiheadAttention(**({"embed_dim": E, "num_heads": H} | arguments))


class TestInputs:
    def test_a_query_that_sees_no_key_gives_numbers(self) -> None:
        layer, x = narrow("cp"), torch.randn(T, B, E)
        mask = torch.zeros(T, T, dtype=torch.bool)
        mask[2] = True
        expected, _ = layer(x, x, x)
        for given in (mask, torch.zeros(T, T).masked_fill(mask, float("-inf"))):
            for need_weights in (False, True):
                output, _ = layer(x, x, x, attn_mask=given, need_weights=need_weights)
                assert output.isfinite().all()
                seeing = torch.arange(T) != 2
                same(output[seeing], expected[seeing])
                assert torch.autograd.grad(output.sum(), layer.query.weight)[0].isfinite().all()

    def test_dropout_in_training_only(self) -> None:
        layer, x = narrow("cp", dropout=0.5), torch.randn(T, B, E)
        for need_weights in (False, True):
            first, second = (layer(x, x, x, need_weights=need_weights)[0] for _ in range(2))
            same(first, second, tolerance=0)
            layer.train()
            first, second = (layer(x, x, x, need_weights=need_weights)[0] for _ in range(2))
            assert not torch.equal(first, second)
            layer.eval()
        assert (layer.train()(x, x, x)[1] == 0).any()

    @pytest.mark.parametrize(
        ("inputs", "given", "message"),
        [
            ([(T, B, E)] * 2 + [(S, B, E)], {}, "a value for each key"),
            ([(T, B, E), (T, E), (T, E)], {}, "not 3, 2 and 2"),
            ([(1, T, B, E)] * 3, {}, "three axes"),
            ([(T, B, E), (S, 1, E), (S, 1, E)], {}, "same batch size, not 2 and 1"),
            ([(T, B, E + 1)] + [(S, B, E)] * 2, {}, "not 25, 24 and 24"),
            ([(T, B, E), (S, B, E), (S, B, 1)], {}, "not 24, 24 and 1"),
            ([(T, B, E)] * 3, {"attn_mask": torch.zeros(T, S)}, r"must have shape \(6, 6\) or \(8, 6, 6\)"),
            ([(T, B, E)] * 3, {"attn_mask": torch.zeros(B, T, T)}, r"not \(2, 6, 6\)"),
            ([(T, B, E)] * 3, {"key_padding_mask": torch.zeros(T, B)}, r"must have shape \(2, 6\)"),
        ],
    )
    def test_shapes_that_do_not_fit(self, inputs: list, given: dict[str, Tensor], message: str) -> None:
        with pytest.raises(collab.errors.ShapeError, match=message):
            narrow("cp")(*map(torch.randn, inputs), **given)

    def test_masks_of_integers_and_a_hint_without_a_mask(self) -> None:
        layer, x = narrow("cp"), torch.randn(T, B, E)
        with pytest.raises(collab.errors.ConfigurationError, match=r"boolean or of floating point, not torch\.int64"):
            layer(x, x, x, attn_mask=torch.zeros(T, T, dtype=torch.long))
        with pytest.raises(collab.errors.ConfigurationError, match="give attn_mask too"):
            layer(x, x, x, is_causal=True)


class TestGradients:
    @every_form
    @pytest.mark.parametrize("need_weights", [False, True])
    @pytest.mark.parametrize("mask", ["none", "both added"])
    def test_they_are_finite_differences(self, form: str, need_weights: bool, mask: str) -> None:
        torch.manual_seed(0)
        shared_dim = (1, 0, 3) if form == "concat" else 3
        layer = MultiheadAttention(6, 3, shared_dim, form, batch_first=True, kdim=4, vdim=5, dtype=torch.float64)
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
        inputs = [torch.randn(B, T, 6), torch.randn(B, S, 4), torch.randn(B, S, 5)]
        inputs = [each.double().requires_grad_() for each in inputs]
        given = masks(mask, S)
        names = [name for name, _ in layer.named_parameters()]
        bias = torch.randn(T, S, dtype=torch.float64, requires_grad=True)

        def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *parameters: Tensor) -> Any:
            outputs = torch.func.functional_call(
                layer,
                dict(zip(names, parameters, strict=True)),
                (query, key, value),
                {**given, "attn_mask": bias, "need_weights": need_weights},
            )
            return outputs if need_weights else outputs[0]

        assert torch.autograd.gradcheck(attend, (*inputs, bias, *layer.parameters()), fast_mode=True)

    @every_form
    def test_they_are_those_of_the_original(self, form: str) -> None:
        original = native(dtype=torch.float64)
        layer = MultiheadAttention.from_native(original, form=form)
        x, y = torch.randn(T, B, E).double(), torch.randn(S, B, E).double()
        grads = []
        for each in (original, layer):
            inputs = x.clone().requires_grad_(), y.clone().requires_grad_()
            output, _ = each(inputs[0], inputs[1], inputs[1], **masks("both", S))
            grads.append(torch.autograd.grad(output.square().sum(), inputs))
        same(grads[1], grads[0], tolerance=1e-9)


def encoder_layer(form: str | None, **arguments: Any) -> nn.TransformerEncoderLayer:
    """An encoder layer of torch's, with its own attention or one that is converted at full width."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, **({"batch_first": True} | arguments))
    nn.init.normal_(layer.self_attn.in_proj_bias)
    if form is not None:
        layer.self_attn = MultiheadAttention.from_native(layer.self_attn, form=form)
    return layer


class TestInTransformers:
    """In `torch.nn`'s encoder and decoder layers."""

    @every_form
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("mask", ["none", "bool", "padding", "both", "causal"])
    @pytest.mark.parametrize("arguments", [{}, {"batch_first": False}, {"norm_first": True}])
    def test_an_encoder_layer(self, form: str, training: bool, mask: str, arguments: dict[str, bool]) -> None:
        original, layer = (encoder_layer(each, **arguments).train(training) for each in (None, form))
        x = torch.randn(B, T, E) if original.self_attn.batch_first else torch.randn(T, B, E)
        given = masks("none" if mask == "causal" else mask)
        given = {"src_mask": given.get("attn_mask"), "src_key_padding_mask": given.get("key_padding_mask")}
        if mask == "causal":
            given = {"src_mask": nn.Transformer.generate_square_subsequent_mask(T), "is_causal": True}
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients):
                same(layer(x, **given), original(x, **given), tolerance=1e-4)

    @pytest.mark.parametrize("gradients", [False, True])
    def test_the_fused_path_is_not_taken(self, gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Gradients of an original's weights keep torch from it too, so there must be none."""
        calls: list[int] = []
        fused = torch._transformer_encoder_layer_fwd
        monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *inputs: calls.append(1) or fused(*inputs))
        x = torch.randn(B, T, E)
        for form, taken in ((None, 1), ("cp", 0)):
            layer = encoder_layer(form).eval().requires_grad_(False)
            with torch.set_grad_enabled(gradients):
                layer(x)
            assert len(calls) == taken
            calls.clear()

    @pytest.mark.parametrize("replaced", ["before", "after", "some"])
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # the original's
    @torch.no_grad()
    def test_an_encoder_with_padding_uses_no_nested_tensors(self, replaced: str) -> None:
        original = nn.TransformerEncoder(encoder_layer(None), 2).eval()
        x, padding = torch.randn(B, T, E), masks("padding")["key_padding_mask"]
        expected = original(x, src_key_padding_mask=padding)
        assert original.use_nested_tensor
        if replaced == "before":
            encoder = nn.TransformerEncoder(encoder_layer("cp"), 2, enable_nested_tensor=False)
        else:
            encoder = copy.deepcopy(original)
            for layer in encoder.layers[: 1 if replaced == "some" else 2]:
                layer.self_attn = MultiheadAttention.from_native(layer.self_attn)
            assert encoder.use_nested_tensor
        output = encoder.eval()(x, src_key_padding_mask=padding)
        same(output[~padding], expected[~padding], tolerance=1e-4)
        mixed = copy.deepcopy(original)  # whose first layer makes the others' inputs nested
        mixed.layers[1].self_attn = MultiheadAttention.from_native(mixed.layers[1].self_attn)
        with pytest.raises(collab.errors.ShapeError, match="enable_nested_tensor=False"):
            mixed(x, src_key_padding_mask=padding)

    def test_an_encoder_says_that_it_uses_no_nested_tensors(self) -> None:
        with pytest.warns(UserWarning, match="use_nested_tensor is False"):
            nn.TransformerEncoder(encoder_layer("cp"), 2)

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
    def test_nested_tensors_are_refused(self) -> None:
        x = torch.nested.nested_tensor([torch.randn(3, E), torch.randn(5, E)])
        layer = narrow("cp", batch_first=True)
        with pytest.raises(collab.errors.ShapeError, match="Pad the inputs"):
            layer(x, x, x)

    @every_form
    @pytest.mark.parametrize("training", [False, True])
    def test_a_decoder_layer(self, form: str, training: bool) -> None:
        torch.manual_seed(0)
        original = nn.TransformerDecoderLayer(E, H, 32, dropout=0.0, batch_first=True).train(training)
        layer = copy.deepcopy(original)
        for name in ("self_attn", "multihead_attn"):
            setattr(layer, name, MultiheadAttention.from_native(getattr(original, name), form=form))
        x, y = torch.randn(B, T, E), torch.randn(B, S, E)
        padding = torch.zeros(B, S).masked_fill(masks("padding", S)["key_padding_mask"], float("-inf"))
        given = {
            "tgt_mask": nn.Transformer.generate_square_subsequent_mask(T),
            "tgt_is_causal": True,
            "memory_key_padding_mask": padding,
        }
        same(layer(x, y, **given), original(x, y, **given), tolerance=1e-4)

    def test_it_trains(self) -> None:
        """Which of the tokens comes twice? Nothing but attention can tell."""
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        layer.self_attn = MultiheadAttention(32, 4, 8, batch_first=True)
        model = nn.Sequential(nn.Embedding(12, 32), layer, nn.Linear(32, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        losses = []
        for _ in range(150):
            tokens = torch.rand(32, 12).argsort(dim=1)[:, :8]
            tokens[:, 7] = tokens.gather(1, torch.randint(7, (32, 1))).squeeze(1)
            tokens = tokens.gather(1, torch.rand(32, 8).argsort(dim=1))
            twice = (tokens.unsqueeze(1) == tokens.unsqueeze(2)).sum(dim=2) - 1  # (B, T)
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), twice.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


class TestCompiledAndExported:
    @pytest.mark.slow
    @pytest.mark.exhaustive
    @every_form
    def test_compiled_as_one_graph(self, form: str) -> None:
        torch._dynamo.reset()
        layer, x, y = narrow(form, batch_first=True), torch.randn(B, T, E), torch.randn(B, S, E)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for given in ({}, {"need_weights": False}, {"need_weights": False, **masks("both", S)}):
            with torch.no_grad():
                same(compiled(x, y, y, **given), layer(x, y, y, **given))
            expected, actual = (each(x, y, y, **given)[0].square().sum() for each in (layer, compiled))
            parameters = list(layer.parameters())
            same(torch.autograd.grad(actual, parameters), torch.autograd.grad(expected, parameters), tolerance=1e-4)

    @pytest.mark.parametrize("form", often(FORMS, {"concat"}))
    def test_exported_with_lengths_left_open(self, form: str) -> None:
        layer, x, y = narrow(form, batch_first=True), torch.randn(B, T, E), torch.randn(B, S, E)
        padding = masks("padding", S)["key_padding_mask"]
        batch, length, seen = (torch.export.Dim(name, min=2, max=64) for name in ("batch", "length", "seen"))
        program = torch.export.export(
            layer,
            (x, y, y, padding, False),
            dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: seen}, {0: batch, 1: seen}, {0: batch, 1: seen}, None),
        )
        for sizes in ((B, T, S), (5, 9, 13)):
            x, y = torch.randn(sizes[0], sizes[1], E), torch.randn(sizes[0], sizes[2], E)
            padding = torch.arange(sizes[2]).expand(sizes[0], -1) > 2
            same(program.module()(x, y, y, padding, False)[0], layer(x, y, y, padding, False)[0])

    @pytest.mark.exhaustive
    @every_form
    def test_as_an_onnx_graph(self, form: str) -> None:
        pytest.importorskip("onnxscript")
        onnxruntime = pytest.importorskip("onnxruntime")
        encoder = encoder_layer(form).eval()
        x, padding = torch.randn(B, T, E), masks("padding")["key_padding_mask"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's exporter about itself
            program = torch.onnx.export(encoder, (x, None, padding), dynamo=True, verbose=False)
        assert program is not None
        file = io.BytesIO()
        program.save(file)
        session = onnxruntime.InferenceSession(file.getvalue())
        names = [each.name for each in session.get_inputs()]
        given = dict(zip(names, (x.numpy(), padding.numpy()), strict=True))
        assert not re.search("mask", names[0])
        with torch.no_grad():
            same(torch.from_numpy(session.run(None, given)[0]), encoder(x, src_key_padding_mask=padding), 1e-4)
