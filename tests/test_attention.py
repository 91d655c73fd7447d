"""The collaborative layer against the plain formula: every form, mask and kernel."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from tiny import often
from torch import Tensor
from transformers import BertConfig, DynamicCache
from transformers.models.bert.modeling_bert import BertCrossAttention, BertSelfAttention

from collab.modeling import collab_kernel
from collab.modeling.collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from collab.modeling.collab_config import AttentionSpec

B, T, D, H = 2, 7, 24, 3
SPECS = [
    AttentionSpec("concat", 12),
    AttentionSpec("concat", 10),
    AttentionSpec("concat", 11, (7, 0, 4)),
    AttentionSpec("cp", 9),
    AttentionSpec("tucker", 5),
]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.form}-{spec.head_ranks or spec.rank}")
KERNELS = ["eager", "sdpa", "fused", "matmul"]  # the last two are what sdpa chooses from
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def make(spec: AttentionSpec, kernel: str = "eager", causal: bool = False, cross: bool = False, bias: bool = True):
    config = BertConfig(hidden_size=D, num_attention_heads=H, attention_probs_dropout_prob=0.0)
    config._attn_implementation = "sdpa" if kernel in ("fused", "matmul") else kernel
    native = (BertCrossAttention if cross else BertSelfAttention)(config, is_causal=causal, layer_idx=0)
    if not bias:
        native.query.bias = None
    torch.manual_seed(1)
    layer = (CollaborativeCrossAttention if cross else CollaborativeSelfAttention)(native, spec, config)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    if kernel in ("fused", "matmul"):
        layer.path = kernel
    return layer.eval()


def formula(layer, x: Tensor, y: Tensor, allowed: Tensor | None, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Written out head by head, with -∞ where a key may not be seen."""
    outputs, weights = [], []
    owners = itertools.accumulate(layer.head_ranks or (), initial=0)
    slices = [slice(*pair) for pair in itertools.pairwise(owners)]
    for h in range(H):
        query, key = layer.query(x), layer.key(y)
        if layer.spec.form == "concat":
            query, key = query[..., slices[h]], key[..., slices[h]]
        elif layer.spec.form == "cp":
            query = query * layer.mixing[h]
        else:
            query = query @ layer.mixing[h]
        scores = query @ key.mT
        if layer.content_bias is not None:
            scores = scores + (y @ layer.content_bias.weight[h]).unsqueeze(1)
        scores = scores / (D // H) ** 0.5
        if bias is not None:
            scores = scores + bias[:, h]
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        weights.append(scores.softmax(dim=-1))
        outputs.append(weights[-1] @ layer.value(y)[..., h * (D // H) : (h + 1) * (D // H)])
    return torch.cat(outputs, dim=-1), torch.stack(weights, dim=1)


def padding() -> Tensor:
    """(B, 1, T, T), True where a key is seen: the second sequence is padded after four tokens."""
    allowed = torch.ones(B, 1, T, T, dtype=torch.bool)
    allowed[1, :, :, 4:] = False
    return allowed


@every_spec
@every_kernel
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", ["none", "bool", "expanded", "float"])
def test_masks(spec: AttentionSpec, kernel: str, bias: bool, mask: str) -> None:
    layer, x = make(spec, kernel, bias=bias), torch.randn(B, T, D)
    allowed = None if mask == "none" else padding()
    given = allowed
    if mask == "expanded":  # as transformers gives it
        given = padding()[:, :, :1].clone().expand(-1, -1, T, -1)
    if mask == "float":
        given = torch.zeros(B, 1, T, T).masked_fill(~allowed, torch.finfo(torch.float32).min)
    expected, weights = formula(layer, x, x, None if allowed is None else allowed[:, 0])
    with torch.no_grad():  # kernels that have no gradient of a mask may be chosen only here
        torch.testing.assert_close(layer(x, attention_mask=given)[0], expected, rtol=1e-5, atol=1e-6)
    output, actual_weights = layer(x, attention_mask=given)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    if kernel == "eager":
        torch.testing.assert_close(actual_weights, weights, rtol=1e-5, atol=1e-6)


@every_spec
@every_kernel
@pytest.mark.parametrize("bias", [True, False])
def test_causal_without_a_mask(spec: AttentionSpec, kernel: str, bias: bool) -> None:
    layer, x = make(spec, kernel, causal=True, bias=bias), torch.randn(B, T, D)
    expected, _ = formula(layer, x, x, torch.ones(T, T, dtype=torch.bool).tril())
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-5, atol=1e-6)
    everything, _ = formula(layer, x, x, None)
    torch.testing.assert_close(layer(x, is_causal=False)[0], everything, rtol=1e-5, atol=1e-6)


@every_spec
@pytest.mark.parametrize("mask", ["none", "causal", "row", "written", "full", "position"])
@pytest.mark.parametrize("tile", [1, 30_000, 40_000])  # a few queries at a time, or a sequence, or two and then one
@torch.no_grad()
def test_tiles(spec: AttentionSpec, mask: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collab_kernel, "TILE", tile)
    monkeypatch.setattr(collab_kernel, "SEQUENCES", tile)
    length = 40
    layer, x = make(spec, "matmul", causal=mask == "causal"), torch.randn(3, length, D)
    allowed = torch.ones(3, 1, length, length, dtype=torch.bool)
    given, bias = None, None
    if mask == "causal":
        allowed = allowed.tril()
    elif mask != "none":
        allowed[1, ..., 30:] = False
        given = allowed[:, :, :1].clone().expand(-1, -1, length, -1) if mask == "row" else allowed
        if mask == "full":
            allowed[2] = allowed[2].tril()
        if mask == "position":
            bias = torch.randn(1, H, length, length)
    expected, _ = formula(layer, x, x, allowed[:, 0], bias)
    output, _ = layer(x, attention_mask=given, position_bias=bias)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


@every_spec
@pytest.mark.parametrize("kernel", ["eager", "matmul"])
@torch.no_grad()
def test_token_by_token_without_copies_of_the_cache(spec: AttentionSpec, kernel: str) -> None:
    """A product of all sequences reads keys and values where the cache has them."""
    layer, x, cache = make(spec, kernel, causal=True), torch.randn(3, T, D), DynamicCache()
    expected, _ = formula(layer, x, x, torch.ones(T, T, dtype=torch.bool).tril())
    for token in range(T):
        output, _ = layer(x[:, token : token + 1], past_key_values=cache)
        torch.testing.assert_close(output[:, 0], expected[:, token], rtol=1e-5, atol=1e-6)
    held = cache.layers[0]
    for entry in (held.keys, held.values):
        assert entry.is_contiguous()
        assert not collab_kernel.is_copied(entry)


@every_spec
@pytest.mark.parametrize("kernel", ["eager", "matmul"])
@torch.no_grad()
def test_heads_side_by_side_are_read_where_they_are(
    spec: AttentionSpec, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values as a projection gives them are large enough here for a product for each sequence."""
    monkeypatch.setattr(collab_kernel, "COPIED", 0)
    multiply, products = torch.bmm, []
    monkeypatch.setattr(torch, "bmm", lambda *given, out: products.append(multiply(*given, out=out)))
    layer, x = make(spec, kernel, causal=True), torch.randn(3, T, D)
    expected, _ = formula(layer, x, x, torch.ones(T, T, dtype=torch.bool).tril())
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-5, atol=1e-6)
    assert len(products) >= 3


@pytest.mark.parametrize("spec", [*SPECS, AttentionSpec("cp", 9, content="folded")], ids=str)
@pytest.mark.parametrize("kernel", ["sdpa", "matmul"])
@pytest.mark.parametrize("length", [T, 40])  # with scores that fit into one tile, and with more
@torch.no_grad()
def test_tracing(spec: AttentionSpec, kernel: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace serves other lengths than its example's."""
    monkeypatch.setattr(collab_kernel, "TILE", 8_000)
    monkeypatch.setattr(collab_kernel, "SEQUENCES", 20_000)
    layer = make(spec, kernel).requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its tracing deprecated
        traced = torch.jit.trace(lambda x: layer(x)[0], torch.randn(3, length, D))
    for other in (length, 11, 50):
        x = torch.randn(3, other, D)
        torch.testing.assert_close(traced(x), layer(x)[0], rtol=1e-5, atol=1e-5)


@every_spec
@every_kernel
def test_cross_attention(spec: AttentionSpec, kernel: str) -> None:
    layer, x, y = make(spec, kernel, cross=True), torch.randn(B, T, D), torch.randn(B, 5, D)
    allowed = torch.ones(B, 1, 1, 5, dtype=torch.bool)
    allowed[0, ..., 3:] = False
    expected, _ = formula(layer, x, y, allowed[:, 0])
    torch.testing.assert_close(layer(x, y, attention_mask=allowed)[0], expected, rtol=1e-5, atol=1e-6)


@every_spec
@every_kernel
def test_position_bias(spec: AttentionSpec, kernel: str) -> None:
    layer, x, bias = make(spec, kernel), torch.randn(B, T, D), torch.randn(1, H, T, T)
    expected, _ = formula(layer, x, x, padding()[:, 0], bias)
    output, _ = layer(x, attention_mask=padding(), position_bias=bias)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", often([SPECS[3], SPECS[2], SPECS[4]], {SPECS[3].form}, lambda spec: spec.form))
def test_flex_attention_with_a_block_mask(spec: AttentionSpec) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    layer, x = make(spec, "flex_attention"), torch.randn(B, T, D)
    lengths = torch.tensor([T, 4])
    mask = create_block_mask(lambda b, h, q, k: k < lengths[b], B, None, T, T, device="cpu")
    with torch.no_grad():
        expected, _ = formula(layer, x, x, padding()[:, 0])
        torch.testing.assert_close(layer(x, attention_mask=mask)[0], expected, rtol=1e-4, atol=1e-5)
        output, weights = layer(x, attention_mask=mask, output_attentions=True)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
        assert weights.shape == (B, H, T, T)


@every_spec
def test_asking_for_attentions_always_gives_them(spec: AttentionSpec) -> None:
    layer, x = make(spec, "sdpa"), torch.randn(B, T, D)
    _, weights = layer(x, attention_mask=padding(), output_attentions=True)
    torch.testing.assert_close(weights, formula(layer, x, x, padding()[:, 0])[1], rtol=1e-5, atol=1e-6)


@every_kernel
def test_dropout_in_training_only(kernel: str) -> None:
    layer, x = make(AttentionSpec("cp", 9), kernel), torch.randn(B, T, D)
    layer.attention_dropout = 0.5
    torch.testing.assert_close(layer(x)[0], layer(x)[0])
    layer.train()
    assert not torch.equal(layer(x)[0], layer(x)[0])


@every_spec
@every_kernel
def test_gradients_reach_every_parameter(spec: AttentionSpec, kernel: str) -> None:
    layer = make(spec, kernel)
    layer(torch.randn(B, T, D), attention_mask=padding())[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@every_spec
@every_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_narrow_dtypes(spec: AttentionSpec, kernel: str, dtype: torch.dtype, causal: bool) -> None:
    layer, x = make(spec, kernel, causal=causal).to(dtype), torch.randn(B, T, D).to(dtype)
    mask = None if causal else padding()
    output, _ = layer(x, attention_mask=mask)
    assert output.dtype == dtype
    allowed = torch.ones(T, T, dtype=torch.bool).tril() if causal else padding()[:, 0]
    expected, _ = formula(layer.float(), x.float(), x.float(), allowed)
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.15)


@every_spec
@torch.no_grad()
def test_tiles_in_bfloat16(spec: AttentionSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make(spec, "matmul").bfloat16(), torch.randn(3, 40, D).bfloat16()
    whole, _ = layer(x)
    monkeypatch.setattr(collab_kernel, "TILE", 8_000)
    monkeypatch.setattr(collab_kernel, "SEQUENCES", 20_000)
    torch.testing.assert_close(layer(x)[0], whole, rtol=0.1, atol=0.15)


@every_spec
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(("dtype", "path"), [(torch.bfloat16, "matmul"), (torch.float16, "fused")])
def test_a_data_type_chooses(
    spec: AttentionSpec, gradient: bool, dtype: torch.dtype, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Tensor] = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def counted(query: Tensor, *args: object, **kwargs: object) -> Tensor:
        calls.append(query)
        return fused(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    layer, x = make(spec, "sdpa").to(dtype), torch.randn(B, 80, D).to(dtype)
    with torch.set_grad_enabled(gradient):
        chosen, _ = layer(x)
        assert len(calls) == (path == "fused")
        layer.path = path
        torch.testing.assert_close(layer(x)[0], chosen, rtol=0, atol=0)


@every_spec
def test_autocast(spec: AttentionSpec) -> None:
    for kernel in ("eager", "sdpa"):
        layer, x = make(spec, kernel), torch.randn(B, T, D)
        expected, _ = layer(x, attention_mask=padding())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output, _ = layer(x, attention_mask=padding())
        torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.15)


@every_spec
@every_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, float("-inf")])
def test_autocast_where_a_query_sees_no_key(
    spec: AttentionSpec, kernel: str, dtype: torch.dtype, lowest: float
) -> None:
    """The mask of a causal batch padded on the left is in float32, whose smallest number is -∞ in a narrow type."""
    layer, x = make(spec, kernel), torch.randn(B, T, D)
    allowed = torch.ones(B, 1, T, T, dtype=torch.bool).tril()
    allowed[1, ..., :3] = False  # so the first three queries see nothing
    expected, _ = formula(layer, x, x, allowed[:, 0])
    for mask in (allowed, torch.zeros(B, 1, T, T).masked_fill(~allowed, lowest)):
        for gradient in (False, True):
            with torch.autocast("cpu", dtype=dtype), torch.set_grad_enabled(gradient):
                output, _ = layer(x, attention_mask=mask)
            assert output.isfinite().all()
            torch.testing.assert_close(output[0].float(), expected[0], rtol=0.1, atol=0.15)
            torch.testing.assert_close(output[1, 3:].float(), expected[1, 3:], rtol=0.1, atol=0.15)


def test_peft_names_are_there() -> None:
    names = {name for name, _ in make(AttentionSpec("cp", 9)).named_children()}
    assert {"query", "key", "value"} <= names


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"form": "cp"}, "form, rank"),
        ({"form": "cp", "rank": 4, "gates": 3}, "newer collab"),
        ({"form": "svd", "rank": 4}, "Unknown form"),
        ({"form": "cp", "rank": 0}, "positive integer"),
        ({"form": "cp", "rank": 4, "head_ranks": [2, 2]}, "belong to the concat form"),
        ({"form": "concat", "rank": 4, "head_ranks": [2, 1]}, "add up to 4"),
    ],
)
def test_bad_specs(entry: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionSpec.from_dict(entry)


def test_specs_survive_json() -> None:
    for spec in SPECS:
        assert AttentionSpec.from_dict(spec.to_dict()) == spec
