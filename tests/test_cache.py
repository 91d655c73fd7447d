"""What a decoder's cache holds, as `plan`, `inspect` and `bench` report it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from processes import run
from safetensors.torch import load_file, load_model, save_model
from tiny import (
    BERT,
    DECODERS,
    FORMS,
    ROWS,
    SEQ2SEQ,
    Row,
    converted,
    every_form,
    often,
    random_model,
    tiny_model,
)
from transformers import AutoModelForCausalLM, BertLMHeadModel, DynamicCache, PreTrainedModel

import collab
from collab.cli.tables import not_faster_at_writing
from collab.models.cache import CacheBytes, cache_bytes
from collab.models.layers import count_parameters

D, H, LAYERS = 32, 4, 2
ONCE = collab.BenchOptions(batch_sizes=(1,), lengths=(4,), rounds=1, device="cpu")


def decoder(**changes: Any) -> PreTrainedModel:
    """A tiny decoder, whose original's cache has D keys and D values in each layer."""
    return random_model(BertLMHeadModel, BERT.config(is_decoder=True, eos_token_id=None, **changes))


@every_form
@pytest.mark.parametrize("content", ["exact", "folded"])
def test_a_key_is_as_wide_as_the_rank(form: str, content: str) -> None:
    """In the concat form too, whose heads are of different widths."""
    model = converted(decoder(), 9, form, content=content)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([[5, 9, 11], [7, 8, 6]]), past_key_values=cache, use_cache=True)
    width = 9 + (H if content == "exact" else 0)
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(2, 1, 3, width)] * LAYERS
    assert [tuple(layer.values.shape) for layer in cache.layers] == [(2, H, 3, D // H)] * LAYERS
    assert cache_bytes(model) == CacheBytes(4 * width * LAYERS, 4 * D * LAYERS, "float32")


@pytest.mark.parametrize("content", ["exact", "folded"])
def test_heads_of_equal_widths_have_keys_and_values_of_their_own(content: str) -> None:
    model = converted(decoder(), D, "concat", content=content)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([[5, 9, 11], [7, 8, 6]]), past_key_values=cache, use_cache=True)
    width = D // H + (content == "exact")
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(2, H, 3, width)] * LAYERS
    assert [tuple(layer.values.shape) for layer in cache.layers] == [(2, H, 3, D // H)] * LAYERS
    assert cache_bytes(model) == CacheBytes(4 * width * H * LAYERS, 4 * D * LAYERS, "float32")


@pytest.mark.parametrize(
    ("form", "cross", "calibrated"),
    often(
        [(form, *kind) for form in FORMS for kind in ((False, False), (False, True), (True, False))],
        {"cp-False-False", "tucker-False-True", "concat-True-False"},
    ),
)
def test_plans_say_what_a_conversion_then_holds(form: str, cross: bool, calibrated: bool) -> None:
    model = decoder(add_cross_attention=cross).bfloat16()
    calibration = collab.calibrate(model, options=collab.CalibrationOptions(samples=8)) if calibrated else None
    for content in ("exact", "folded"):
        planned = collab.ConversionConfig(params=0.5, form="auto", allocation="uniform", content=content)
        plan = collab.plan(model, calibration, planned, fractions=(0.5,))
        size = 2 * D * LAYERS
        assert plan.cache == cache_bytes(model) == CacheBytes(size, size, "bfloat16", size * cross, size * cross)
        option = next(option for option in plan.options if option.form == form)
        config = collab.ConversionConfig(rank=option.rank, form=form, content=content, refine="none")
        assert cache_bytes(collab.convert(model, config, calibration=calibration).model) == option.cache


@every_form
@pytest.mark.parametrize("cross", [False, True])
def test_plans_say_which_forms_make_no_step_faster(form: str, cross: bool) -> None:
    """A step reads the queries' weights of cross-attention, whose keys are in the cache."""
    model = decoder(add_cross_attention=cross)
    config = collab.ConversionConfig(rank=D, form=form, content="folded")
    plan = collab.plan(model, None, config, fractions=(1.0, 0.25))
    before = (2 + cross) * (D + 1) * D
    layer = count_parameters(model.bert.encoder.layer[0]) - cross * 2 * (D + 1) * D  # keys and values are in the cache
    besides = layer - before + count_parameters(model.cls.predictions.decoder) / LAYERS
    for option in plan.options:
        cores = H * option.rank**2 if form == "tucker" else 0
        read = besides + (2 + cross) * D * option.rank + (1 + cross) * cores
        assert option.step is not None
        assert read <= option.step * (besides + before) <= read + 2 * (1 + cross) * H * option.rank
    slow = not_faster_at_writing(plan.options)
    full, quarter = plan.options
    assert slow[0].startswith(f"{form}, rank {D}: a token")
    assert ("no step faster" in slow[0]) == (full.step > 1 / 1.01)
    assert any(f"rank {D // 4}:" in sentence for sentence in slow) == (quarter.step > 1 / 1.1)


ENCODERS = [row for row in ROWS if row not in DECODERS + SEQ2SEQ]


@pytest.mark.parametrize("row", often(ENCODERS, {"bert", "deberta-v2", "eurobert", "vit", "wav2vec2"}))
def test_encoders_have_none(row: Row) -> None:
    for model in (native := tiny_model(row), converted(native)):
        assert cache_bytes(model) is None
        assert collab.inspect(model).cache is None


def test_inspect_and_bench_measure_it() -> None:
    native = decoder().train()
    model = converted(native, 8, content="folded")
    sizes = [CacheBytes(4 * width * LAYERS, 4 * D * LAYERS, "float32") for width in (8, D)]
    assert [collab.inspect(each).cache for each in (model, native)] == sizes
    assert native.training
    assert [each.cache for each in collab.bench([model, native], ONCE).models] == sizes
    report = collab.bench([model], replace(ONCE, dtype="bfloat16"))
    assert report.models[0].cache == CacheBytes(2 * 8 * LAYERS, 2 * D * LAYERS, "bfloat16")


@pytest.mark.parametrize("row", [*DECODERS, *SEQ2SEQ], ids=lambda row: row.model_type)
def test_a_model_without_weights_will_do(row: Any) -> None:
    """Whatever stands for padding: nothing can be compared there."""
    with torch.device("meta"):
        empty = row.family.base.native_class()(row.config(pad_token_id=0))
    assert cache_bytes(empty) == cache_bytes(tiny_model(row))


def test_commands_show_it(tmp_path: Path) -> None:
    decoder().save_pretrained(tmp_path / "model")
    collab.checkpoints.convert(
        str(tmp_path / "model"), tmp_path / "out", collab.ConversionConfig(rank=8, content="folded", refine="none")
    )
    for folder, width in (("model", D), ("out", 8)):
        expected = f"{4 * width * LAYERS} bytes of keys and {4 * D * LAYERS} of values for each token, in float32"
        shown = run("inspect", tmp_path / folder)
        assert shown.exit_code == 0, shown.output
        assert expected in " ".join(shown.stdout.split())
        shown = run("bench", tmp_path / folder, "--rounds", 1, "--batch-size", 1, "--length", 4, "--no-memory")
        assert shown.exit_code == 0, shown.output
        assert expected in " ".join(shown.stdout.split())
    shown = " ".join(run("plan", tmp_path / "model", "--calibration", "none").stdout.split())
    assert f"(the original's: {4 * D * LAYERS}); in float32" in shown


@every_form
@pytest.mark.parametrize("implementation", ["dynamic", "static"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_is_the_same_with_a_cache(form: str, implementation: str, beams: int) -> None:
    """Beams reorder the cache; padding on the left hides its first keys."""
    model = converted(decoder(), 9, form)
    transformers.set_seed(0)
    prompt = torch.tensor([[1, 1, 5, 9], [7, 8, 6, 11]])
    given = {"attention_mask": (prompt != 1).long(), "max_new_tokens": 8, "do_sample": False, "num_beams": beams}
    plain = model.generate(prompt, use_cache=False, **given)
    assert torch.equal(model.generate(prompt, cache_implementation=implementation, **given), plain)


@every_form
@pytest.mark.parametrize("words", [9000, 9001])
def test_few_tokens_have_the_scores_that_many_have(form: str, words: int) -> None:
    """Without gradients, large weights are multiplied in parts, and not all can be divided into equal ones."""
    model = converted(decoder(vocab_size=words), 16, form)
    rows = torch.randint(5, words, (1, 12), generator=torch.Generator().manual_seed(0))
    expected = model(rows).logits
    for threads in (1, 3):
        with several_threads(threads), torch.no_grad():
            cache = DynamicCache(config=model.config)
            parts = [model(part, past_key_values=cache).logits for part in rows.split([1, 3, 8], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected)


@contextmanager
def several_threads(count: int) -> Iterator[None]:
    """So many threads of torch inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@every_form
def test_weights_stay_their_own_while_a_model_writes(form: str, tmp_path: Path) -> None:
    """A step lays weights of queries, keys and values side by side, which nobody who saves, copies or trains sees."""
    model = converted(decoder(), 12, form)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prompt = torch.tensor([[7, 8, 6, 11]])
    given = {"max_new_tokens": 6, "do_sample": False}
    with torch.inference_mode():
        model.generate(prompt, **given)
    save_model(model, tmp_path / "weights.safetensors")
    load_model(copied := copy.deepcopy(model), tmp_path / "weights.safetensors")
    for after in (model.state_dict(), copied.state_dict()):
        assert all(torch.equal(after[name], value) for name, value in before.items())
    model.train()(input_ids=prompt, labels=prompt).loss.backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    model.eval()
    copied.load_state_dict(model.state_dict())
    changed = converted(decoder(), 12, form)
    changed.load_state_dict(model.state_dict())
    expected = changed.generate(prompt, use_cache=False, **given)
    assert all(torch.equal(each.generate(prompt, **given), expected) for each in (model, copied))
    assert all(torch.equal(value, before[name]) for name, value in load_file(tmp_path / "weights.safetensors").items())


@pytest.mark.parametrize("row", DECODERS, ids=lambda row: row.model_type)
def test_prompts_in_chunks(row: Any) -> None:
    """Then transformers makes a static cache before there are keys."""
    native = random_model(AutoModelForCausalLM._model_mapping[row.config_class], row.config(eos_token_id=None))
    given = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static", "prefill_chunk_size": 4}
    prompt = torch.randint(5, 59, (1, 9))
    expected, actual = (model.generate(prompt, **given) for model in (native, converted(native, 1.0)))
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("row", [row for row in DECODERS if row.model_type != "opt"], ids=lambda row: row.model_type)
def test_a_mask_of_less_precision(row: Any) -> None:
    native = tiny_model(row)
    ids = torch.randint(5, 59, (1, 9))
    mask = torch.zeros(1, 1, 9, 9).masked_fill(torch.ones(9, 9).triu(1).bool(), -6e4)
    for model in (native, full := converted(native, 1.0)):
        model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = full(ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(full(ids, attention_mask=mask.half()).last_hidden_state, expected)
        torch.testing.assert_close(native(ids, attention_mask=mask).last_hidden_state, expected, rtol=0, atol=1e-4)
