"""Models of an encoder and a decoder that are families of their own: EncoderDecoderModel, VisionEncoderDecoderModel."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from PIL import Image
from processes import run
from reload import outputs_without_collab
from tiny import (
    BY_TYPE,
    FORMS,
    KINDS,
    PAIRS,
    SENTENCES,
    batches,
    check_calibration_is_closer,
    converted,
    full_rank,
    largest_difference,
    often,
    outputs,
    random_model,
    save_with_tokenizer,
    tensors,
)
from transformers import AutoModelForImageTextToText, AutoModelForSeq2SeqLM, BertTokenizerFast, PreTrainedModel

import collab
from collab.errors import CollabError, UnsupportedArchitectureError
from collab.modeling.collab_composite import DECODERS
from collab.modeling.collab_encoder_decoder import CollabEncoderDecoderModel
from collab.modeling.collab_vision_encoder_decoder import CollabVisionEncoderDecoderModel
from collab.models.cache import CacheBytes, cache_bytes
from collab.models.families import require_family
from collab.models.inputs import probe_inputs

H, D = 4, 32
NATIVE = {False: transformers.EncoderDecoderModel, True: transformers.VisionEncoderDecoderModel}
COMBINATIONS = [
    *(("bert", part) for part in DECODERS),
    *((part, "roberta") for part in CollabEncoderDecoderModel.sides["encoder"]),
    *((part, "bert") for part in CollabVisionEncoderDecoderModel.sides["encoder"]),
]
every_third_combination = pytest.mark.parametrize(
    ("encoder", "decoder"), often(COMBINATIONS, {"-".join(parts) for parts in COMBINATIONS[::3]})
)


def composite(encoder: str = "bert", decoder: str = "bert", **changes: object) -> PreTrainedModel:
    """A tiny model with random weights, its parts of these types."""
    native = NATIVE[encoder in ("vit", "deit", "dinov2")]
    parts = BY_TYPE[encoder].config(), BY_TYPE[decoder].config(is_decoder=True, add_cross_attention=True)
    tokens = {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 3}
    config = native.config_class.from_encoder_decoder_configs(*parts, **{**tokens, **changes})
    return random_model(native, config)


def written(model: PreTrainedModel, **how: object) -> list[list[int]]:
    """What a model writes, the second source padded."""
    sources = {name: value for name, value in probe_inputs(model).items() if not name.startswith("decoder")}
    return model.generate(**sources, max_new_tokens=7, do_sample=False, **how).tolist()


@every_third_combination
def test_exact_at_full_rank_in_teacher_forcing_and_in_what_it_writes(encoder: str, decoder: str) -> None:
    native = composite(encoder, decoder)
    model = converted(native, full_rank(native))
    assert [layer.kind for layer in collab.inspect(model).layers] == KINDS
    assert largest_difference(outputs(native), outputs(model)) < 1e-4
    for beams in (1, 3):
        assert written(model, num_beams=beams) == written(native, num_beams=beams)


@every_third_combination
def test_what_it_writes_is_the_same_with_every_cache(encoder: str, decoder: str) -> None:
    number = COMBINATIONS.index((encoder, decoder))
    model = converted(composite(encoder, decoder), 7, FORMS[number % 3])
    for beams in (1, 3):
        plain = written(model, use_cache=False, num_beams=beams)
        for implementation in ("dynamic", "static"):
            assert written(model, cache_implementation=implementation, num_beams=beams) == plain


def test_a_cache_holds_one_key_for_all_heads() -> None:
    native = composite()
    plan = collab.plan(native, fractions=(0.5,))
    assert plan.cache == cache_bytes(native)
    held = 2 * 4 * (9 + H), 2 * 4 * D
    assert cache_bytes(converted(native, 9)) == CacheBytes(*held, "float32", *held)


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_a_part_is_not_saved_alone(part: str, tmp_path: Path) -> None:
    """Its config is native, by which it would load as another model."""
    model = converted(composite(), 8)
    with pytest.raises(ValueError, match="is a part of a converted model"):
        getattr(model, part).save_pretrained(tmp_path / part)


def test_parts_are_of_different_widths() -> None:
    """Then a projection stands between them."""
    parts = BY_TYPE["bert"].config(hidden_size=48), BY_TYPE["bert"].config(is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*parts, pad_token_id=1)
    native = random_model(transformers.EncoderDecoderModel, config)
    model = converted(native, 1.0)
    assert [layer["rank"] for layer in model.config.collab_layers] == [48, 48, D, D, D, D]
    assert largest_difference(outputs(native), outputs(model)) < 1e-4


@pytest.mark.parametrize(
    ("encoder", "auto_class"), [("roberta", AutoModelForSeq2SeqLM), ("vit", AutoModelForImageTextToText)]
)
def test_reloads_three_ways(encoder: str, auto_class: type, tmp_path: Path) -> None:
    model = converted(composite(encoder), 7)
    model.save_pretrained(tmp_path / "out")
    expected = outputs(model)
    for loader in (auto_class, type(model)):
        reloaded = loader.from_pretrained(tmp_path / "out")
        assert type(reloaded) is type(model)
        assert largest_difference(expected, outputs(reloaded)) < 1e-5
    job = {"folder": tmp_path / "out", "auto_class": auto_class.__name__, "inputs": probe_inputs(model)}
    assert largest_difference(expected, outputs_without_collab([job], tmp_path)[0]) < 1e-5


@pytest.mark.parametrize("encoder", ["distilbert", "vit"])
def test_an_export_carries_no_files_of_other_families(encoder: str, tmp_path: Path) -> None:
    model = converted(composite(encoder), 7)
    model.save_pretrained(tmp_path)
    others = {f"collab_{model_type.replace('-', '_')}.py" for model_type in BY_TYPE}
    assert not others & {file.name for file in tmp_path.iterdir()}


@pytest.mark.parametrize("data", often(["synthetic", "pairs", "sources"], {"sources"}))
def test_calibration_is_closer_than_the_weights_alone(data: str, tokenizer: BertTokenizerFast) -> None:
    check_calibration_is_closer(composite("roberta", "bert"), data, tokenizer)


def test_images_are_answered_by_the_model() -> None:
    class Processor:
        def __call__(self, **given: object) -> dict[str, torch.Tensor]:
            return {"pixel_values": torch.randn(1, 3, 16, 16)}

    native = composite("vit")
    calibration = collab.calibrate(collab.Checkpoint(native, Processor()), [Image.new("RGB", (16, 16))] * 8)
    assert all(not moments.unknown for moments in calibration.moments.values())
    assert all(int(batch["decoder_input_ids"][0, 0]) == 2 for batch in calibration.held_out)


def test_healing_on_pairs_brings_the_answers_closer(tokenizer: BertTokenizerFast) -> None:
    native = composite()
    settings = replace(collab.HealOptions().run, steps=20, batch_size=8, device="cpu")
    options = collab.HealOptions(samples=40, run=settings)
    record = collab.heal(
        collab.Checkpoint(converted(native, 6), tokenizer), native, PAIRS, options=options
    ).report.to_dict()
    assert record["improved"]
    assert record["after"]["kl"] < record["before"]["kl"]


def test_expands_to_the_original() -> None:
    native = composite()
    model = converted(native, 8, "concat", content="folded")
    expanded = collab.expand(model).model
    assert type(expanded) is type(native)
    assert largest_difference(outputs(model), outputs(expanded)) < 1e-5


def test_heads_are_scored_and_pruned(tokenizer: BertTokenizerFast) -> None:
    native = composite()
    scores = collab.score_heads(collab.Checkpoint(native, tokenizer), PAIRS[:8])
    assert [len(values) for values in scores.importance("gradient").values()] == [H] * 6
    keep = {layer.name: [0, 2] for layer in collab.inspect(native).layers if layer.kind == "cross"}
    pruned = collab.prune(native, keep).model
    assert [layer.heads for layer in collab.inspect(pruned).layers] == [4, 4, 4, 2, 4, 2]
    assert written(pruned) == written(pruned, use_cache=False)


def test_gradients_reach_every_factor() -> None:
    model = converted(composite(), 7)
    sum(value.sum() for value in tensors(model(**probe_inputs(model))).values()).backward()
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert all("pooler" in name for name in missing)


@pytest.mark.exhaustive
def test_convert_inspect_and_plan(tmp_path: Path) -> None:
    folder = save_with_tokenizer(composite(), tmp_path / "model")
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in [("en", "de"), *PAIRS]))
    given = ("--calibration", tmp_path / "pairs.tsv", "--text-column", "en", "--text-column", "de")
    done = run("convert", folder, tmp_path / "out", "--rank", 8, "--refine", 4, *given)
    assert done.exit_code == 0, done.output
    for shown in (run("inspect", folder), run("inspect", tmp_path / "out"), run("plan", folder, *given)):
        assert shown.exit_code == 0, shown.output
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert written(again) == written(again, use_cache=False)


@pytest.mark.parametrize(
    ("encoder", "decoder"), often([("dinov2", "roberta"), ("distilbert", "bert-generation")], {"dinov2-roberta"})
)
def test_compressed_in_both_parts(encoder: str, decoder: str, tmp_path: Path) -> None:
    """What it writes is the same with a cache and after reloading; the parts' configs say how many layers are left."""
    native = composite(encoder, decoder)
    calibration = collab.calibrate(native, batches(native, 8))
    small = collab.compress(native, collab.CompressionConfig(flops=0.6, drop_layers=2, healed=True), calibration)
    assert small.report.flops.ratio <= 0.6
    assert [layer.dropped for layer in small.report.layers].count(True) == 2
    parts = small.model.config.encoder, small.model.config.decoder
    assert [part.num_hidden_layers for part in parts] == [1, 1]
    narrow = collab.compress(native, collab.CompressionConfig(step_bytes=0.6, drop_layers=0), calibration)
    assert narrow.report.step_bytes.ratio <= 0.6
    assert all(any(changed) for changed in zip(*(layer.changed for layer in narrow.report.layers), strict=True))
    for number, model in enumerate((small.model, narrow.model)):
        assert written(model) == written(model, use_cache=False)
        model.save_pretrained(tmp_path / str(number))
        assert written(type(model).from_pretrained(tmp_path / str(number))) == written(model)
    only = collab.CompressionConfig(flops=0.8, native=True, only=("feed-forward", "layers"))
    expansion = collab.expand(collab.compress(native, only, calibration).model)
    assert type(expansion.model) is type(native)
    assert expansion.report.output_difference < 1e-5 * max(1.0, expansion.report.output_scale)


def test_compress_and_heal(tmp_path: Path) -> None:
    folder = save_with_tokenizer(composite(), tmp_path / "model")
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in [("en", "de"), *PAIRS]))
    given = ("--calibration", tmp_path / "pairs.tsv", "--text-column", "en", "--text-column", "de", "--heal-steps", 4)
    done = run("compress", folder, tmp_path / "out", "--flops", 0.6, "--stacks", "decoder", *given, "--json")
    assert done.exit_code == 0, done.output
    compressed, healed = json.loads((tmp_path / "out" / "collab_report.json").read_text())["history"]
    assert compressed["flops"]["ratio"] <= 0.6
    assert healed["after"]["kl"] <= healed["before"]["kl"]
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert written(again) == written(again, use_cache=False)


class TestRefusals:
    @pytest.mark.parametrize(
        ("encoder", "decoder", "message"),
        [
            ("bert", "gpt2", "its decoder is of type 'gpt2'. Those that convert are bert"),
            ("albert", "bert", "its encoder is of type 'albert'"),
        ],
    )
    def test_parts_of_other_families(self, encoder: str, decoder: str, message: str) -> None:
        with pytest.raises(UnsupportedArchitectureError, match=message):
            require_family(composite(encoder, decoder).config)

    def test_other_positions(self) -> None:
        config = composite().config
        config.encoder.position_embedding_type = "relative_key"
        with pytest.raises(UnsupportedArchitectureError, match="its encoder has relative_key positions"):
            require_family(config)

    def test_no_decoder_start_token(self, tokenizer: BertTokenizerFast) -> None:
        with pytest.raises(CollabError, match="decoder_start_token_id"):
            collab.calibrate(collab.Checkpoint(composite(decoder_start_token_id=None), tokenizer), PAIRS[:4])

    def test_parts_keep_their_attention(self, tokenizer: BertTokenizerFast) -> None:
        """A calibration computes attention weights for a while."""
        model = composite()
        model.set_attn_implementation({"encoder": "eager", "decoder": "sdpa"})
        before = [model.get_submodule(part).config._attn_implementation for part in ("encoder", "decoder")]
        assert before == ["eager", "sdpa"]
        collab.calibrate(collab.Checkpoint(model, tokenizer), PAIRS[:4])
        assert [model.get_submodule(part).config._attn_implementation for part in ("encoder", "decoder")] == before

    def test_leaving_out_tokens(self, tokenizer: BertTokenizerFast) -> None:
        with pytest.raises(UnsupportedArchitectureError, match="vocabularies of their own"):
            collab.keep_tokens(collab.Checkpoint(composite(), tokenizer), SENTENCES)
