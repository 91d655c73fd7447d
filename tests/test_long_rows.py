"""Attention in long rows: exact where it is defined, the same as before below the threshold, and never T by T."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from processes import run
from reload import check_reloads
from test_attention import SPECS, make
from tiny import (
    BERT,
    BY_TYPE,
    FORMS,
    converted,
    in_pairs,
    largest_difference,
    of_seen,
    random_model,
    random_text,
    tiny_model,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, PreTrainedModel

import collab
from collab.cli.tables import cache_sentence
from collab.errors import CollabError, ConfigurationError, DataError, UnsupportedArchitectureError
from collab.graphs.samples import check_exportable
from collab.modeling import collab_feed_forward
from collab.modeling.collab_config import AttentionSpec, LongRows
from collab.models.families import collaborative_layers
from collab.models.inputs import has_length, longest_input, random_inputs
from collab.models.positions import with_positions_of
from collab.models.states import attending_by

B, T, D = 3, 29, 24
LOCAL = LongRows(block=4, global_tokens=1, dense_below=12)
OPTIONS = collab.LongOptions(block=4, dense_below=12, summaries="mean:2")
ROWS_OF_KINDS = ("roberta", "albert", "vit", "jina_embeddings_v3", "modernbert", "bart", "wav2vec2", "eurobert")
PADDING = ("none", "right", "left")
ONE_ROW = ("bert", "albert", "distilbert", "jina_embeddings_v3", "gte", "nomic_bert", "eurobert")


def mask_of(padding: str) -> Tensor | None:
    """(B, T), True for tokens: a whole row, one of 20, and one of 9, which is short."""
    if padding == "none":
        return None
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[1, 20:] = mask[2, 9:] = False
    return mask.flip(1) if padding == "left" else mask


def seen_locally(long: LongRows, mask: Tensor | None, causal: bool = False) -> Tensor:
    """What every token sees, (B, T, T), by the definition."""
    seen = torch.zeros(B, T, T, dtype=torch.bool)
    for row in range(B):
        tokens = list(range(T)) if mask is None else mask[row].nonzero().flatten().tolist()
        for place, query in enumerate(tokens):
            for other, key in enumerate(tokens[: place + 1] if causal else tokens):
                block, of_key = ((number - long.global_tokens) // long.block for number in (place, other))
                is_global = min(place, other) < long.global_tokens
                short = (place + 1 if causal else len(tokens)) < long.dense_below
                seen[row, query, key] = is_global or abs(block - of_key) <= 1 or short
    return seen


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.form}-{spec.head_ranks or spec.rank}")
@pytest.mark.parametrize("padding", PADDING)
def test_local_attention_is_dense_attention_with_the_same_mask(spec: AttentionSpec, padding: str) -> None:
    mask = mask_of(padding)
    x = torch.randn(B, T, D).double()
    for long in (LOCAL, replace(LOCAL, global_tokens=0), replace(LOCAL, global_tokens=3, block=5)):
        layer, dense = (
            make(replace(spec, long=long), "fused" if long.global_tokens else "matmul").double(),
            make(spec).double(),
        )
        seen = seen_locally(long, mask)
        expected, weights = dense(x, attention_mask=seen.unsqueeze(1))
        given = None if mask is None else mask[:, None, None]
        output, _ = layer(x, attention_mask=given)
        tokens = torch.ones(B, T, dtype=torch.bool) if mask is None else mask
        torch.testing.assert_close(output[tokens], expected[tokens], rtol=0, atol=1e-10)
        output, shown = layer(x, attention_mask=given, output_attentions=True)
        torch.testing.assert_close(output[tokens], expected[tokens], rtol=0, atol=1e-10)
        torch.testing.assert_close(shown.transpose(1, 2)[tokens], weights.transpose(1, 2)[tokens], rtol=0, atol=1e-10)


@pytest.mark.parametrize("summaries", ["mean:2", "mean:4", "stride:4"])
@pytest.mark.parametrize("spec", SPECS[2:], ids=lambda spec: spec.form)
def test_summaries_of_equal_tokens_are_exact(spec: AttentionSpec, summaries: str) -> None:
    count = int(summaries.partition(":")[2])
    groups = torch.randn(B, 7 * 4 // count, D).repeat_interleave(count, dim=1)
    x = torch.cat([torch.randn(B, 1, D), groups], dim=1)
    layer = make(replace(spec, long=replace(LOCAL, summaries=summaries)), "sdpa")
    expected, weights = make(spec)(x)
    torch.testing.assert_close(layer(x)[0], expected, rtol=0, atol=1e-5)
    if summaries.startswith("mean"):
        torch.testing.assert_close(layer(x, output_attentions=True)[1], weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("summaries", [None, "mean:2", "stride:2"])
@pytest.mark.parametrize("padding", PADDING)
def test_blocks_and_all_weights_at_once_agree(summaries: str | None, padding: str) -> None:
    mask = mask_of(padding)
    given = None if mask is None else mask[:, None, None]
    tokens = torch.ones(B, T, dtype=torch.bool) if mask is None else mask
    spec, x = (
        replace(SPECS[3], long=replace(LOCAL, summaries=summaries)),
        torch.randn(B, T, D).double().requires_grad_(),
    )
    results = []
    for kernel in ("sdpa", "eager"):
        layer = make(spec, kernel).double()
        output, _ = layer(x, attention_mask=given)
        gradients = torch.autograd.grad(output[tokens].square().sum(), [x, *layer.parameters()], allow_unused=True)
        results.append([output[tokens], *(gradient for gradient in gradients if gradient is not None)])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_dtype(dtype: torch.dtype) -> None:
    mask, x = mask_of("right"), torch.randn(B, T, D)
    assert mask is not None
    for summaries in (None, "mean:2"):
        layer = make(replace(SPECS[3], long=replace(LOCAL, summaries=summaries)), "sdpa")
        expected, _ = layer(x, attention_mask=mask[:, None, None])
        output, _ = layer.to(dtype)(x.to(dtype), attention_mask=mask[:, None, None])
        error = (output - expected)[mask].abs().max() / expected.abs().max()
        assert error < (1e-6 if dtype == torch.float64 else 0.05)


def in_chunks(layer: Any, x: Tensor, mask: Tensor | None, sizes: list[int]) -> tuple[Tensor, Any]:
    """What a decoder's layer makes of rows, (B, T, D), that it is given in chunks; and its cache."""
    cache, outputs, before = transformers.DynamicCache(), [], 0
    for size in sizes:
        end = before + size
        seen = torch.ones(B, end, dtype=torch.bool) if mask is None else mask[:, :end]
        given = seen[:, None, None] & torch.ones(end, end, dtype=torch.bool).tril()[before:]
        given = None if mask is None and size in (1, end) else given  # as transformers has it
        outputs.append(layer(x[:, before:end], attention_mask=given, past_key_values=cache)[0])
        before = end
    return torch.cat(outputs, dim=1), cache


CHUNKS = ([T], [1] * T, [14] + [1] * (T - 14), [5, 9, 3, T - 17])
WRITING = [LOCAL, replace(LOCAL, global_tokens=0, dense_below=6), replace(LOCAL, global_tokens=3, block=5)]


@in_pairs("spec", [SPECS[0], *SPECS[2:]], "padding", PADDING)
def test_local_attention_of_a_decoder_is_dense_attention_with_the_same_mask(spec: AttentionSpec, padding: str) -> None:
    """Read at once, in chunks and token by token."""
    mask, x = mask_of(padding), torch.randn(B, T, D).double()
    tokens = torch.ones(B, T, dtype=torch.bool) if mask is None else mask
    given = None if mask is None else mask[:, None, None]
    for long in WRITING:
        dense = make(spec, causal=True).double()
        expected, weights = dense(x, attention_mask=seen_locally(long, mask, causal=True).unsqueeze(1))
        layer = make(replace(spec, long=long), "sdpa", causal=True).double()
        shown = layer(x, attention_mask=given, output_attentions=True)
        torch.testing.assert_close(
            shown[1].transpose(1, 2)[tokens], weights.transpose(1, 2)[tokens], atol=1e-10, rtol=0
        )
        with torch.no_grad():
            outputs = [in_chunks(layer, x, mask, sizes)[0] for sizes in CHUNKS]
        for output in (shown[0], layer(x, attention_mask=given)[0], *outputs):
            torch.testing.assert_close(output[tokens], expected[tokens], rtol=0, atol=1e-10)


def summarized(layer: Any, x: Tensor, long: LongRows, mask: Tensor | None) -> Tensor:
    """A decoder's layer with summaries, (B, T, D), token by token by the definition."""
    (how, count), some = long.grouping, long.global_tokens
    queries, keys, values, content = layer.queries(x), layer.keys(x), layer.values(x), layer.bias(x)
    output = torch.zeros(B, T, D, dtype=x.dtype)
    for row in range(B):
        tokens = list(range(T)) if mask is None else mask[row].nonzero().flatten().tolist()
        for place, token in enumerate(tokens):
            behind = max(0, (place - some) // long.block - 1) * long.block  # tokens before those that it sees itself
            behind = 0 if place + 1 < long.dense_below else behind
            groups = [tokens[first : first + count] for first in range(some, some + behind, count)]
            seen = [[each] for each in tokens[:some] + tokens[some + behind : place + 1]] if behind else []
            seen = seen or [[each] for each in tokens[: place + 1]]
            parts = [group[:1] if how == "stride" else group for group in groups] + seen
            weights = [len(group) for group in groups] + [1] * len(seen)
            key, value, bias = (
                torch.stack([each[row, ..., part, :].mean(dim=-2) for part in parts], dim=-2)
                for each in (keys, values, content.unsqueeze(-1))
            )
            scores = (queries[row, :, token, None] * key).sum(dim=-1) + bias.squeeze(-1)  # (H, n)
            scores = scores * layer.scaling + torch.tensor(weights, dtype=x.dtype).log()
            output[row, token] = (scores.softmax(dim=-1).unsqueeze(1) @ value).flatten()
    return output


@in_pairs("summaries", ["mean:2", "stride:4", "mean:4"], "padding", PADDING)
def test_summaries_of_a_decoder_are_those_of_the_blocks_before(summaries: str, padding: str) -> None:
    mask, x = mask_of(padding), torch.randn(B, T, D).double()
    tokens = torch.ones(B, T, dtype=torch.bool) if mask is None else mask
    given = None if mask is None else mask[:, None, None]
    for spec, long in ((SPECS[1], LOCAL), (SPECS[3], replace(LOCAL, global_tokens=3, dense_below=5))):
        long = replace(long, summaries=summaries)
        layer = make(replace(spec, long=long), "sdpa", causal=True).double()
        with torch.no_grad():
            expected = summarized(layer, x, long, mask)
            shown, weights = layer(x, attention_mask=given, output_attentions=True)
            torch.testing.assert_close(
                weights.sum(dim=-1).transpose(1, 2)[tokens], torch.ones(int(tokens.sum()), 3).double()
            )
            for output in (shown, *(in_chunks(layer, x, mask, sizes)[0] for sizes in CHUNKS)):
                torch.testing.assert_close(output[tokens], expected[tokens], rtol=0, atol=1e-10)


def test_gradients_of_a_decoder_do_not_depend_on_the_kernel() -> None:
    mask, x = mask_of("left"), torch.randn(B, T, D).double().requires_grad_()
    assert mask is not None
    for summaries in (None, "mean:2"):
        results = []
        for kernel in ("sdpa", "eager"):
            layer = make(replace(SPECS[3], long=replace(LOCAL, summaries=summaries)), kernel, causal=True).double()
            output, _ = layer(x, attention_mask=mask[:, None, None])
            results.append(torch.autograd.grad(output[mask].square().sum(), [x, *layer.parameters()]))
        for mine, other in zip(*results, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-8)


def test_a_decoder_with_a_mask_of_another_kind_is_refused() -> None:
    layer = make(replace(SPECS[3], long=LOCAL), "sdpa", causal=True)
    packed = torch.ones(T, T, dtype=torch.bool).tril()
    packed[15:, :15] = False
    with pytest.raises(ValueError, match="masks of padding only"):
        layer(torch.randn(B, T, D), attention_mask=packed[None, None])


class _Largest(TorchDispatchMode):
    """The largest number of entries of a tensor that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self.entries = max(self.entries, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    for spec, causal in [*((spec, False) for spec in SPECS[:1] + SPECS[3:]), (SPECS[3], True)]:
        largest = []
        for length in (1024, 4096):
            x, mask = torch.randn(1, length, D), torch.ones(1, 1, 1, length, dtype=torch.bool)
            mask[..., -5:] = False
            with _Largest() as mode, torch.no_grad():
                make(replace(spec, long=LongRows(16, dense_below=64)), "sdpa", causal)(x, attention_mask=mask)
            largest.append(mode.entries)
        assert largest[1] <= 4.1 * largest[0]
        assert largest[1] < 4096**2 // 20


@pytest.mark.parametrize("kind", ["bert", "albert", "jina_embeddings_v3", "wav2vec2", "modernbert"])
def test_feed_forward_layers_of_long_rows_are_computed_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collab_feed_forward, "TOGETHER", 3)
    native = tiny_model(BY_TYPE[kind])
    model = collab.lengthen(native, replace(OPTIONS, block=2, dense_below=8)).model
    inputs = random_inputs(native, 2, 20 if has_length(native) else 8, states=20)
    blocks = [module for module in model.modules() if type(module) in type(model).feed_forward_classes]
    up: Any = blocks[0].get_submodule(type(model).feed_forward_classes[type(blocks[0])].up)
    whole = model(**inputs).last_hidden_state  # with a gradient
    copied = copy.deepcopy(model)
    seen: list[torch.Size] = []
    compute = up.forward
    monkeypatch.setattr(up, "forward", lambda states: seen.append(states.shape) or compute(states))
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).last_hidden_state, whole, rtol=0, atol=1e-5)
        assert seen[0][:2] == (1, 3)
        seen.clear()
        with up.register_forward_hook(lambda *args: None):
            torch.testing.assert_close(model(**inputs).last_hidden_state, whole, rtol=0, atol=1e-5)
        assert seen[0][:2] == whole.shape[:2]
        torch.nn.init.zeros_(up.weight)
        torch.testing.assert_close(copied(**inputs).last_hidden_state, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [*ONE_ROW, "gpt2", "llama", "opt"])
def test_a_mask_of_padding_is_never_square(kind: str) -> None:
    options = replace(OPTIONS, max_length=256, positions="copy")
    model = collab.lengthen(tiny_model(BY_TYPE[kind]), options).model
    inputs = random_text(2, 250)
    with torch.no_grad(), _Largest() as mode:
        output = model(**inputs)
    assert mode.entries < 2 * 250**2
    square = inputs | {"attention_mask": inputs["attention_mask"].bool()[:, None, None].expand(-1, -1, 250, -1)}
    if kind in ("gpt2", "llama", "opt"):
        square["attention_mask"] = square["attention_mask"].tril()
    if kind == "opt":  # which reads them off a mask of two axes
        mask = inputs["attention_mask"]
        square["position_ids"] = mask.cumsum(dim=1) * mask - 1
    with torch.no_grad():
        assert largest_difference(of_seen(model(**square), inputs), of_seen(output, inputs)) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_shorter_rows_are_what_they_were(form: str) -> None:
    before = converted(tiny_model(BERT), form=form)
    after = collab.lengthen(before, replace(OPTIONS, max_length=64, positions="copy")).model
    short = random_text(2, 11)
    with torch.no_grad():
        first, second = before(**short), after(**short)
        assert torch.equal(first.last_hidden_state, second.last_hidden_state)
        both = {name: torch.nn.functional.pad(value, (0, 49)) for name, value in short.items()}
        both = {name: torch.cat([value, torch.ones_like(value[:1])]) for name, value in both.items()}
        among_long = after(**both).last_hidden_state[:2, :11]
    seen = short["attention_mask"].bool()
    torch.testing.assert_close(among_long[seen], first.last_hidden_state[seen], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ROWS_OF_KINDS)
@pytest.mark.parametrize("attention", ["local", "summaries"])
def test_every_kind_of_family(kind: str, attention: str) -> None:
    native = tiny_model(BY_TYPE[kind])
    options = replace(OPTIONS, attention=attention, block=2, dense_below=4)
    if kind == "modernbert" and attention == "summaries":
        with pytest.raises(UnsupportedArchitectureError, match="window of its own"):
            collab.lengthen(native, options)
        return
    model = collab.lengthen(native, options).model
    inputs = random_inputs(native, 2, 20 if has_length(native) else 8, states=5)
    if "attention_mask" in inputs:
        inputs["attention_mask"][1, 13:] = 0
    with torch.no_grad():
        output = of_seen(model(**inputs), inputs)
        with attending_by(model, "eager"):
            assert largest_difference(output, of_seen(model(**inputs), inputs)) < 1e-5


def decoder(kind: str) -> PreTrainedModel:
    """A tiny model that writes."""
    row = BY_TYPE[kind]
    changes = {"bert": {"is_decoder": True}, "mistral": {"sliding_window": None}}.get(kind, {})
    head = AutoModelForCausalLM._model_mapping[row.config_class]
    return random_model(head, row.config(eos_token_id=None, pad_token_id=1, **changes))


WRITERS = {
    "gpt2": "local",
    "opt": "summaries",
    "llama": "summaries",
    "mistral": "local",
    "qwen2": "local",
    "bert": "summaries",
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_decoder_writes_the_same_with_a_cache_that_forgets(kind: str) -> None:
    """With beams and padding on the left; beside a layer that forgets nothing; and after a prompt in chunks."""
    options = replace(OPTIONS, attention=WRITERS[kind], max_length=64, positions="copy")
    options = replace(options, dense_layers=(0,) if kind in ("gpt2", "bert") else ())
    model = collab.lengthen(converted(decoder(kind), 1.0), options).model
    prompt = torch.randint(5, 59, (2, 20))
    prompt[0, :7] = 1
    given = {"attention_mask": (prompt != 1).long(), "max_new_tokens": 9, "do_sample": False}
    told = {"output_logits": True, "return_dict_in_generate": True}
    plain, cached = (model.generate(prompt, use_cache=use_cache, **given, **told) for use_cache in (False, True))
    assert torch.equal(plain.sequences, cached.sequences)
    torch.testing.assert_close(torch.stack(plain.logits), torch.stack(cached.logits), rtol=0, atol=1e-4)
    assert torch.equal(model.generate(prompt, prefill_chunk_size=6, **given), plain.sequences)
    plain, cached = (model.generate(prompt, use_cache=use_cache, num_beams=3, **given) for use_cache in (False, True))
    assert torch.equal(plain, cached)


def test_shorter_rows_of_a_decoder_are_what_they_were() -> None:
    """And so are the first tokens of longer ones."""
    before = converted(decoder("llama"), 9, "cp")
    after = collab.lengthen(before, OPTIONS).model
    ids = torch.randint(5, 59, (2, 30))
    with torch.no_grad():
        expected = before(ids[:, :11]).logits
        assert torch.equal(after(ids[:, :11]).logits, expected)
        torch.testing.assert_close(after(ids).logits[:, :11], expected, rtol=0, atol=1e-5)
    given = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    first, second = (model.generate(ids[:, :5], **given) for model in (before, after))
    assert all(map(torch.equal, first.logits, second.logits))
    assert type(second.past_key_values.layers[0]) is transformers.cache_utils.DynamicLayer


def test_a_cache_holds_what_tokens_to_come_can_see() -> None:
    x, held = torch.randn(B, 40, D), []
    for summaries in (None, "mean:2"):
        long = replace(LOCAL, summaries=summaries)
        layer, cache = make(replace(SPECS[3], long=long), "sdpa", causal=True), transformers.DynamicCache()
        for token in range(40):
            with torch.no_grad():
                layer(x[:, token : token + 1], past_key_values=cache)
            held.append(cache.layers[0].keys.shape[2])
            assert cache.get_seq_length() == token + 1
            assert cache.get_mask_sizes(1, 0) == (token + 2, 0)
            assert held[-1] <= long.held(token + 1)
    # A row of 12 tokens is long; its last token stands in the block of 9 to 12, and sees that of 5 to 8, and token 0.
    assert held[:13] == [*range(1, 12), 1 + 7, 1 + 4]
    assert held[39] == 1 + 7  # 33 to 39
    assert held[79] == 1 + 32 // 2 + 7


def test_a_decoder_is_lengthened_refined_and_reported(tokenizer: transformers.BertTokenizerFast) -> None:
    native = decoder("gpt2")
    options = replace(OPTIONS, max_length=64, positions="copy", dense_layers="auto", dense_budget=0.75)
    long = collab.lengthen(collab.Checkpoint(converted(native, 16), tokenizer), options, text_of(160))
    assert sorted(long.report.layers.values()) == [False, True]
    assert all(error > 0 for error in long.report.errors.values())
    assert "those of the block before and the first token (9 tokens at most)" in long.report.summary()
    shown = collab.inspect(long)
    assert any("a token sees 9 others at most" in sentence for sentence in shown.explanation)
    cache = shown.cache
    assert cache is not None
    assert cache.held == (cache.keys + cache.values) // 2 * (64 + 11)
    assert f"at most {cache.held:,} for a row of 64 tokens" in cache_sentence(cache)
    rows = [random_text(2, 60) for _ in range(8)]
    refined = collab.refine(long, native, rows, options=collab.RefineOptions(steps=10, rows=4))
    assert all(layer.kept for layer in refined.report.layers.values())


def test_caches_that_cannot_forget_are_refused() -> None:
    model = collab.lengthen(decoder("llama"), replace(OPTIONS, max_length=64, positions="copy")).model
    prompt = torch.randint(5, 59, (1, 20))
    short = model.generate(prompt[:, :6], cache_implementation="static", max_new_tokens=4, do_sample=False)
    assert torch.equal(short, model.generate(prompt[:, :6], max_new_tokens=4, do_sample=False))
    with pytest.raises(ValueError, match="StaticCache has layers of its own"):
        model.generate(prompt, cache_implementation="static", max_new_tokens=2)
    cache = model(prompt).past_key_values
    with pytest.raises(ValueError, match="cannot go back"):
        cache.crop(-1)
    cache.reset()
    with torch.no_grad():
        torch.testing.assert_close(model(prompt, past_key_values=cache).logits, model(prompt).logits)


def test_reloads_three_ways(tmp_path: Path) -> None:
    exports = {}
    for kind, attention in (("bert", "summaries"), ("jina_embeddings_v3", "local"), ("llama", "summaries")):
        options = replace(OPTIONS, attention=attention, max_length=64, positions="copy", dense_layers=(1,))
        long = collab.lengthen(tiny_model(BY_TYPE[kind]), options)
        long.model.save_pretrained(tmp_path / f"{kind}-{attention}")
        exports[tmp_path / f"{kind}-{attention}"] = random_text(2, 50)
    check_reloads(exports, tmp_path)
    config = json.loads((tmp_path / "bert-summaries" / "config.json").read_text())
    assert config["collab_layers"][0]["long"]["summaries"] == "mean:2"
    assert "long" not in config["collab_layers"][1]


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_positions_are_repeated_or_stretched(kind: str) -> None:
    native = tiny_model(BY_TYPE[kind])
    limit = longest_input(native)
    table = native.embeddings.position_embeddings.weight.detach()
    first = len(table) - limit
    copied = collab.lengthen(native, replace(OPTIONS, max_length=100, positions="copy")).model
    assert longest_input(copied) == 100
    longer = copied.embeddings.position_embeddings.weight
    assert torch.equal(longer[: first + limit], table)
    assert torch.equal(longer[first + limit], table[first])
    stretched = collab.lengthen(native, replace(OPTIONS, max_length=100, positions="interpolate")).model
    longer = stretched.embeddings.position_embeddings.weight
    torch.testing.assert_close(longer[[first, -1]], table[[first, -1]])
    teacher = with_positions_of(native, copied)
    inputs = random_text(2, 90)
    with torch.no_grad():
        alike = collab.lengthen(copied, collab.LongOptions("dense")).model
        assert largest_difference(of_seen(teacher(**inputs), inputs), of_seen(alike(**inputs), inputs)) < 1e-5


@pytest.mark.parametrize("buckets", [-1, 16])
def test_relative_positions_do_not_depend_on_the_longest_row(buckets: int) -> None:
    """By default DeBERTa measures distances by the number of positions."""
    native = tiny_model(BY_TYPE["deberta-v2"], max_relative_positions=-1, position_buckets=buckets)
    length = 2 * longest_input(native)
    longer = collab.lengthen(native, collab.LongOptions("dense", max_length=length, positions="copy")).model
    assert longest_input(longer) == length
    inputs = random_text(2, longest_input(native))
    with torch.no_grad():
        expected = native(**inputs).last_hidden_state
        for model in (longer, with_positions_of(native, longer)):
            torch.testing.assert_close(model(**inputs).last_hidden_state, expected, rtol=0, atol=1e-5)


def test_rotary_positions_go_on_or_turn_slower() -> None:
    native = tiny_model(BY_TYPE["jina_embeddings_v3"])
    longer = collab.lengthen(native, replace(OPTIONS, max_length=80, positions="copy")).model
    slower = collab.lengthen(native, replace(OPTIONS, max_length=80, positions="interpolate")).model
    assert longer.config.rope_parameters == native.config.rope_parameters
    assert slower.config.rope_parameters["factor"] == 2.0
    inputs = random_text(1, 11)
    with torch.no_grad():
        assert largest_difference(longer(**inputs), native(**inputs)) < 1e-5
        assert largest_difference(slower(**inputs), native(**inputs)) > 1e-3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"block": 64}, "A block of 64 tokens .* longer than the longest row, 40"),
        ({"dense_below": 41}, "No row would be long"),
        ({"max_length": 64}, "beyond the model's 40 positions"),
        ({"max_length": 32}, "below the 40 tokens"),
        ({"positions": "interpolate"}, "name a longest row above the 40 tokens"),
        ({"dense_layers": (2,)}, "names layer 2; the model has 2"),
        ({"dense_layers": (0, 1)}, "All layers would stay dense"),
        ({"global_tokens": 0}, "answers by its first token"),
        ({"attention": "summaries", "summaries": "mean:3"}, "cannot be divided into groups of 3"),
        ({"summaries": "mean"}, "summaries must be mean:n or stride:n"),
        ({"global_tokens": 12}, "12 global tokens are all of the shortest long row"),
        ({"attention": "flash"}, "Unknown attention 'flash'"),
        ({"attention": "lsh"}, "lsh attention is not offered: .* the mean of all outputs"),
        ({"dense_layers": "all"}, "numbers of layers, or 'auto'"),
        ({"dense_budget": 1.5}, "above 0 and at most 1"),
        ({"block": 0}, "block must be a whole number of at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], says: str) -> None:
    model = tiny_model(BERT, transformers.BertForSequenceClassification)
    with pytest.raises(ConfigurationError, match=says):
        collab.lengthen(model, replace(OPTIONS, **changes))


def text_of(tokens: int) -> list[str]:
    return [" ".join("abcdefgh"[(row * row + place) % 8] for place in range(10)) for row in range(tokens // 10)]


def test_dense_layers_are_those_that_blocks_change_most(tokenizer: transformers.BertTokenizerFast) -> None:
    model = tiny_model(BERT)
    torch.nn.init.zeros_(model.encoder.layer[0].attention.self.value.weight)  # all tokens get the same
    checkpoint = collab.Checkpoint(model, tokenizer)
    options = replace(OPTIONS, dense_layers="auto", dense_budget=0.99)
    long = collab.lengthen(checkpoint, options, text_of(160))
    assert [*long.report.layers.values()] == [True, False]
    assert long.report.settings["dense_layers"] == (1,)
    errors = [*long.report.errors.values()]
    assert errors[0] < 1e-9
    assert errors[1] > 1e-6
    assert "error in blocks" in long.report.details()
    with pytest.raises(ConfigurationError, match=r"dense_budget=0.1 .* cannot be met: in rows of 40 tokens"):
        collab.lengthen(checkpoint, replace(options, dense_budget=0.1), text_of(160))
    with pytest.raises(ConfigurationError, match="All layers would stay dense"):
        collab.lengthen(checkpoint, replace(options, dense_budget=1.0), text_of(160))


def test_the_error_in_blocks_is_that_of_the_layer_alone(
    tokenizer: transformers.BertTokenizerFast,
) -> None:
    dense = collab.lengthen(tiny_model(BERT), collab.LongOptions("dense"))
    options = replace(OPTIONS, dense_layers="auto", dense_budget=0.99)
    auto = collab.lengthen(collab.Checkpoint(dense.model, tokenizer), options, text_of(40))
    blocks = collab.lengthen(dense, OPTIONS).model
    ids = tokenizer(" ".join(text_of(40)), truncation=True, max_length=40, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        states = dense.model(input_ids=ids, output_hidden_states=True).hidden_states
        for number, (name, layer) in enumerate(collaborative_layers(dense.model).items()):
            project = dense.model.encoder.layer[number].attention.output.dense
            exact, other = (
                project(layer(states[number])[0]),
                project(collaborative_layers(blocks)[name](states[number])[0]),
            )
            error = (other - exact).square().sum() / (exact - exact.mean(dim=1, keepdim=True)).square().sum()
            assert auto.report.errors[name] == pytest.approx(float(error), rel=1e-4)


def test_dense_layers_are_not_chosen_without_long_text(tokenizer: transformers.BertTokenizerFast) -> None:
    options = replace(OPTIONS, dense_layers="auto")
    checkpoint = collab.Checkpoint(tiny_model(BERT), tokenizer)
    with pytest.raises(ConfigurationError, match="on long rows of text"):
        collab.lengthen(checkpoint, options)
    with pytest.raises(DataError, match=r"a row of at least 12 tokens .* all of the text has 3"):
        collab.lengthen(checkpoint, options, ["a b c"])
    with pytest.raises(ConfigurationError, match="for models of text"):
        collab.lengthen(tiny_model(BY_TYPE["vit"]), replace(options, dense_below=4, block=2), text_of(40))
    with pytest.raises(ConfigurationError, match="chooses among layers in blocks"):
        collab.LongOptions("dense", dense_layers="auto")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("mpnet", "depend on relative positions"),
        ("t5", "depend on relative positions"),
        ("deberta-v2", "depend on relative positions"),
        ("mistral", "window of its own"),
    ],
)
def test_models_without_such_a_form_are_refused(kind: str, says: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=says):
        collab.lengthen(tiny_model(BY_TYPE[kind]), OPTIONS)


def test_positions_of_images_cannot_be_extended() -> None:
    options = replace(OPTIONS, dense_below=4, block=2, max_length=64, positions="copy")
    with pytest.raises(UnsupportedArchitectureError, match="cannot be extended"):
        collab.lengthen(tiny_model(BY_TYPE["vit"]), options)


def test_a_graph_is_refused_and_a_native_model_computes_long_rows_like_short_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for model in (tiny_model(BERT), decoder("gpt2")):
        with pytest.raises(UnsupportedArchitectureError, match="--attention dense"):
            check_exportable(collab.lengthen(model, OPTIONS).model)
    long = collab.lengthen(tiny_model(BERT), OPTIONS)
    native = collab.expand(long).model
    assert "like short ones" in caplog.text
    inputs = random_text(1, 11)
    with torch.no_grad():
        assert largest_difference(native(**inputs), long.model(**inputs)) < 1e-5


@pytest.mark.parametrize("kind", ["clip_text_model", "esm", "rembert", "modernbert", "wav2vec2"])
def test_a_mask_with_a_row_for_each_query_hides_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU gets them, where comparing the rows of a mask would wait for it. A short row is computed as if alone."""
    options = collab.LongOptions(block=4, global_tokens=1, dense_below=20)
    long = collab.lengthen(tiny_model(BY_TYPE[kind]), options).model
    name, size = ("input_values", 640) if kind == "wav2vec2" else ("input_ids", 36)
    values = torch.randn(2, size) if kind == "wav2vec2" else torch.randint(5, 35, (2, size))
    mask = torch.ones(2, size, dtype=torch.long)
    mask[1, size // 2 :] = 0
    with torch.no_grad():
        expected = long(**{name: values}, attention_mask=mask).last_hidden_state
        alone = long(**{name: values[1:, : size // 2]}).last_hidden_state
        monkeypatch.setattr("collab.modeling.collab_attention.one_row", lambda mask: mask)
        actual = long(**{name: values}, attention_mask=mask).last_hidden_state
    seen = alone.shape[1]
    assert torch.allclose(actual[0], expected[0], atol=1e-5)
    assert torch.allclose(actual[1, :seen], expected[1, :seen], atol=1e-5)
    if kind != "wav2vec2":  # which normalizes over the whole batch's length
        assert torch.allclose(actual[1, :seen], alone[0], atol=1e-5)


def test_a_pruned_model_in_long_rows_is_not_converted(original: Path, tmp_path: Path) -> None:
    """The native model that it would be converted from computes long rows like short ones."""
    pruned = collab.prune(collab.load(str(original)), collab.PruneOptions(keep={0: [1]}))
    collab.save(collab.lengthen(pruned, OPTIONS), tmp_path / "long")
    with pytest.raises(CollabError, match="collaborative already"):
        collab.checkpoints.convert(str(tmp_path / "long"), tmp_path / "out", collab.ConversionConfig(rank=8))


def test_pruning_keeps_it() -> None:
    long = collab.lengthen(tiny_model(BERT), OPTIONS)
    pruned = collab.prune(long, collab.PruneOptions(keep={0: [1]})).model
    assert [layer.spec.long for layer in collaborative_layers(pruned).values()] == [
        layer.spec.long for layer in collaborative_layers(long.model).values()
    ]


def test_refinement_brings_it_closer_to_dense_attention() -> None:
    native = tiny_model(BERT)
    long = collab.lengthen(converted(native, 16), replace(OPTIONS, max_length=64, positions="copy"))
    rows = [random_text(2, 60) for _ in range(8)]
    refined = collab.refine(long, native, rows, options=collab.RefineOptions(steps=10, rows=4))
    assert all(layer.kept for layer in refined.report.layers.values())


def test_from_folder_to_folder(original: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    line = ["--rank", "8", "--attention", "local", "--block", "4", "--dense-below", "12", "--max-length", "64"]
    done = run("convert", original, made, *line, "--positions", "copy", "--calibration", "none", "--no-speed")
    assert done.exit_code == 0, done.output
    report = json.loads((made / "collab_report.json").read_text())
    assert [step["step"] for step in report["history"]] == ["lengthen"]
    assert "## Long rows" in (made / "README.md").read_text()
    assert json.loads((made / "tokenizer_config.json").read_text())["model_max_length"] == 64
    shown = " ".join(run("inspect", made).output.split())
    assert "2 of 2 layers have local attention" in shown
    assert "converted and then lengthened." in shown

    rows = tmp_path / "rows.txt"
    rows.write_text("\n".join(" ".join("abcdefgh"[(row + place) % 8] for place in range(55)) for row in range(24)))
    healed = run("heal", made, tmp_path / "healed", "--data", rows, "--steps", "2", "--batch-size", "8")
    assert healed.exit_code == 0, healed.output

    line += ["--positions", "copy", "--calibration", rows, "--refine", "none", "--no-speed"]
    chosen = run("convert", original, tmp_path / "chosen", *line, "--dense-layers", "auto", "--dense-budget", "0.9")
    assert chosen.exit_code == 0, chosen.output
    assert "whose outputs blocks would change most" in " ".join(chosen.output.split())

    auto = ["--dense-layers", "auto", "--block", "4", "--dense-below", "12", "--dense-budget", "0.9"]
    chosen = run("lengthen", made, tmp_path / "auto", *auto, "--data", rows, "--json")
    assert chosen.exit_code == 0, chosen.output
    layers = json.loads((tmp_path / "auto" / "collab_report.json").read_text())["history"][-1]["layers"]
    assert sorted(layers.values()) == [False, True]
    for source in ([], ["--data", "synthetic"]):
        refused = run("lengthen", made, tmp_path / "refused", *auto, *source)
        assert refused.exit_code == 2, refused.output
        assert "--dense-layers auto" in refused.output

    dense = run("lengthen", made, tmp_path / "dense", "--attention", "dense")
    assert dense.exit_code == 0, dense.output
    assert all(
        "long" not in layer for layer in json.loads((tmp_path / "dense/config.json").read_text())["collab_layers"]
    )
    for options in (
        ("--dense-layers", "7"),
        ("--block", "99"),
        ("--max-length", "99"),
        ("--attention", "summaries", "--summaries", "x"),
        ("--attention", "linear"),
    ):
        refused = run("lengthen", made, tmp_path / "refused", *options, "--dense-below", "20")
        assert refused.exit_code == 2, refused.output
        assert not (tmp_path / "refused").exists()


def test_a_report_of_a_spec_is_read_again() -> None:
    spec = AttentionSpec("cp", 8, long=LongRows(summaries="stride:8"))
    assert AttentionSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    with pytest.raises(ValueError, match="from 0"):
        LongRows(global_tokens=-1)
    assert issubclass(ConfigurationError, CollabError)
