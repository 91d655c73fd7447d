"""Compression of models that write: every part of encoder, decoder and cross-attention, and dropped decoder layers."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from processes import run
from reload import outputs_without_collab
from test_encoder_decoder import generator_of, marian, written
from tiny import (
    BERT,
    BY_TYPE,
    PAIRS,
    SENTENCES,
    batches,
    largest_difference,
    outputs,
    random_model,
    save_with_tokenizer,
    tiny_model,
)
from transformers import (
    AutoModelForSeq2SeqLM,
    BertTokenizerFast,
    GPT2LMHeadModel,
    MarianMTModel,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
)
from transformers.pytorch_utils import Conv1D

import collab
from collab.compression.timed import Writing
from collab.data.targets import WRITTEN
from collab.errors import BudgetError, ConfigurationError, DataError
from collab.evaluation import timing
from collab.evaluation.timing import Run
from collab.modeling import collab_step
from collab.models.inputs import probe_inputs, random_sources

CAUSAL = {"mistral": MistralForCausalLM, "qwen2": Qwen2ForCausalLM}


def compressed(model: PreTrainedModel, **settings: object) -> collab.Checkpoint:
    calibration = collab.calibrate(model, batches(model, 8))
    return collab.compress(model, collab.CompressionConfig(**settings), calibration)  # type: ignore[arg-type]


def test_every_part_becomes_narrower_and_the_result_writes_and_reloads(tmp_path: Path) -> None:
    compression = compressed(marian(), flops=0.45, drop_layers=0)
    report, model = compression.report, compression.model
    assert report.flops.ratio <= 0.45
    assert report.parameters.after == sum(tensor.numel() for tensor in model.parameters())
    layers = report.layers
    assert [layer.full_cross_rank for layer in layers] == [None, None, 32, 32]
    for changed in zip(*(layer.changed for layer in layers), strict=True):
        assert any(changed)
    assert any((layer.cross_value_width or 8) < 8 or (layer.cross_rank or 32) < 32 for layer in layers[2:])
    for beams in (1, 3):
        plain = written(model, use_cache=False, num_beams=beams)
        assert written(model, num_beams=beams) == plain
        assert written(model, cache_implementation="static", num_beams=beams) == plain
    model.save_pretrained(tmp_path / "out")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert written(again) == written(model)
    job = {"folder": tmp_path / "out", "auto_class": "AutoModelForSeq2SeqLM", "inputs": probe_inputs(model)}
    (apart,) = outputs_without_collab([job], tmp_path)
    assert largest_difference({"logits": outputs(model)["logits"]}, {"logits": apart["logits"]}) < 1e-6
    expansion = collab.expand(model)
    assert expansion.report.output_difference < 1e-5 * max(1.0, expansion.report.output_scale)


@pytest.fixture(scope="module", params=["marian", "gpt2"])
def writer(request: pytest.FixtureRequest) -> PreTrainedModel:
    """A compressed model that writes."""
    torch.manual_seed(0)
    native = marian(d_model=48) if request.param == "marian" else GPT2LMHeadModel(BY_TYPE["gpt2"].config()).eval()
    return compressed(native, flops=0.45, drop_layers=0).model


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("tokens", [1, 2, 5, 8, 9, 33])
def test_few_tokens_are_the_same_with_gradients_and_without(
    writer: PreTrainedModel, tokens: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without gradients, products of few tokens are computed in parts, also by layers that something looks at."""
    model = copy.deepcopy(writer)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, (torch.nn.Linear, Conv1D))}
    inputs = {"input_ids": torch.randint(5, 59, (1, tokens))}
    if model.config.is_encoder_decoder:
        inputs |= {"decoder_input_ids": torch.randint(5, 59, (1, tokens))}
    expected = model(**inputs).logits.detach()
    parts: set[int] = set()  # numbers of products in a batch
    product = torch.baddbmm
    monkeypatch.setattr(collab_step, "LARGE", 0)
    monkeypatch.setattr(collab_step, "SMALL", 200)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(
        torch, "baddbmm", lambda bias, *rest, **more: parts.add(len(rest[0])) or product(bias, *rest, **more)
    )
    with torch.no_grad():
        actual = model(**inputs).logits
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
        assert (5 in parts) == (threads == 5 and tokens <= collab_step.NOT_MANY)
        called: list[str] = []
        for name, layer in layers.items():
            layer.register_forward_hook(lambda *_, name=name: called.append(name))
        torch.testing.assert_close(model(**inputs).logits, actual, rtol=0, atol=1e-5)
    assert set(called) == set(layers)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_dropped_layers_are_those_of_a_stack_and_the_cache_is_numbered_anew(stack: str, tmp_path: Path) -> None:
    native = marian(encoder_layers=3, decoder_layers=3)
    compression = compressed(native, flops=0.9, only=("layers",), stacks=(stack,), drop_layers=2, healed=True)
    model = compression.model
    lists = {"encoder": native.model.encoder, "decoder": native.model.decoder}
    name = "collab_dropped_layers" if stack == "encoder" else "collab_dropped_decoder_layers"
    dropped = getattr(model.config, name)
    assert [len(model.model.encoder.layers), len(model.model.decoder.layers)] == (
        [1, 3] if stack == "encoder" else [3, 1]
    )
    left = [layer for number, layer in enumerate(lists[stack].layers) if number not in dropped]
    lists[stack].layers = torch.nn.ModuleList(left)
    for number, layer in enumerate(native.model.decoder.layers):
        layer.self_attn.layer_idx = layer.encoder_attn.layer_idx = number
    native.config.encoder_layers, native.config.decoder_layers = (
        model.config.encoder_layers,
        model.config.decoder_layers,
    )
    assert written(model) == written(native)
    assert largest_difference({"logits": outputs(model)["logits"]}, {"logits": outputs(native)["logits"]}) < 1e-5
    model.save_pretrained(tmp_path)
    assert getattr(AutoModelForSeq2SeqLM.from_pretrained(tmp_path).config, name) == dropped
    of = " of the decoder" if stack == "decoder" else ""
    assert any(f"Of the original's 3 layers{of}, numbered" in text for text in collab.inspect(model).explanation)
    assert type(collab.expand(model).model) is MarianMTModel


def test_only_the_bytes_of_the_decoder_count_for_a_step() -> None:
    native = marian()
    width, neurons, layers = 32, 48, 2
    report = compressed(native, step_bytes=0.5, stacks=("decoder",), drop_layers=0).report
    linear = 4 * width**2 + 2 * width**2 + 2 * width * neurons  # self-attention, query and output of cross-attention
    assert report.step_bytes.before == pytest.approx(4 * layers * linear, rel=0.05)  # and biases and normalizations
    assert report.step_bytes.ratio <= 0.5
    vocabulary = 4 * native.lm_head.weight.numel()
    assert report.step_bytes_with_vocabulary.before == report.step_bytes.before + vocabulary
    assert not any(any(layer.changed) for layer in report.layers[:2])
    assert "to write a token" in report.summary()


@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_timed_writes_to_the_last_token(beams: int) -> None:
    """A model that would end at once, and one whose tokens of padding and of the end are the same."""
    decoder = BY_TYPE["mistral"].config(pad_token_id=0, eos_token_id=0)
    for model in (marian(), random_model(MistralForCausalLM, decoder)):
        model.generation_config.num_beams = beams
        with torch.no_grad():
            model.get_output_embeddings().weight[:] = 0  # all tokens are alike, and the first of them is written
            if isinstance(model, MarianMTModel):
                model.final_logits_bias[:, model.config.eos_token_id] = 1e3
        rows = random_sources(model, 2, 5)
        prompt = 1 if isinstance(model, MarianMTModel) else 5
        assert Writing(model, 6)(**rows).shape == (2, prompt + 6)


def test_speed_is_that_of_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token takes the time of the decoder's neurons here, and reading that of the encoder's."""
    model = marian(encoder_ffn_dim=128, decoder_ffn_dim=128)

    def time_in_turn(runs: Sequence[Run], **_: object) -> list[float]:
        seconds = []
        for call, _ in runs:
            assert isinstance(call, Writing)
            neurons = getattr(call.model.config, "collab_feed_forward", [128] * 4)
            seconds.append(sum(neurons[:2]) + call.new_tokens * sum(neurons[2:]) / 8)
        return seconds

    monkeypatch.setattr(timing, "time_in_turn", time_in_turn)
    report = compressed(model, speedup=1.5, only=("feed-forward",), new_tokens=16, rows=1).report
    assert report.speedup == pytest.approx(1.5, rel=0.04)
    reading, writing = (sum(layer.neurons for layer in report.layers[part]) for part in (slice(2), slice(2, 4)))
    assert report.step_speedup == pytest.approx(256 / writing)
    assert report.reading_speedup == pytest.approx(256 * 1.125 / (reading + writing / 8))
    assert "at each further one" in report.summary()


def test_a_decoder_may_have_more_layers_than_what_is_left_of_its_encoder() -> None:
    native = generator_of(BY_TYPE["t5"], num_layers=3, num_decoder_layers=3)
    settings = {"flops": 0.99, "only": ("layers",), "stacks": ("encoder",), "drop_layers": 2, "healed": True}
    model = compressed(native, **settings).model
    assert (model.config.num_layers, model.config.num_decoder_layers) == (1, 3)
    assert written(model) == written(model, use_cache=False)


def test_heads_that_align_words_are_renumbered_with_the_layers() -> None:
    native = generator_of(BY_TYPE["whisper"], decoder_layers=2)
    native.generation_config.alignment_heads = [[0, 1], [1, 3]]
    settings = {"flops": 0.99, "only": ("layers",), "stacks": ("decoder",), "drop_layers": 1, "healed": True}
    model = compressed(native, **settings).model
    (kept,) = {0, 1} - set(model.config.collab_dropped_decoder_layers)
    assert model.generation_config.alignment_heads == [[0, {0: 1, 1: 3}[kept]]]
    assert native.generation_config.alignment_heads == [[0, 1], [1, 3]]


@pytest.mark.parametrize("model_type", ["mistral", "qwen2"])
def test_keys_and_values_that_heads_share_are_narrowed_for_all_of_them(model_type: str, tmp_path: Path) -> None:
    native = random_model(CAUSAL[model_type], BY_TYPE[model_type].config(num_hidden_layers=1))
    whole = compressed(native, flops=1.0).model
    assert largest_difference(outputs(native), outputs(whole)) < 1e-5
    assert sum(map(torch.numel, whole.parameters())) == sum(map(torch.numel, native.parameters()))
    compression = compressed(native, flops=0.5)
    (layer,) = compression.model.config.collab_layers
    attention = compression.model.model.layers[0].self_attn
    rank, width = layer["rank"], layer.get("value_width") or 8
    assert layer["key_heads"] == 2
    assert (attention.key.out_features, attention.value.out_features) == (rank // 2, 2 * width)
    assert rank < 32 or width < 8
    plain = written(compression.model, use_cache=False)
    for implementation in ("dynamic", "static"):
        assert written(compression.model, cache_implementation=implementation) == plain
    compression.model.save_pretrained(tmp_path)
    assert written(type(compression.model).from_pretrained(tmp_path)) == plain


class TestHealing:
    RUN = collab.RunOptions(learning_rate=1e-3, batch_size=8, steps=16, evaluations=2, device="cpu")

    @pytest.fixture
    def tokenizer(self, tmp_path: Path) -> BertTokenizerFast:
        save_with_tokenizer(tiny_model(BERT), tmp_path / "tokenizer")
        return BertTokenizerFast.from_pretrained(tmp_path / "tokenizer")

    def test_comes_closer_on_what_the_original_writes_once(
        self, tokenizer: BertTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("accelerate", reason="the train extra is not installed")
        native = marian(decoder_layers=3)
        config = collab.CompressionConfig(step_bytes=0.5, stacks=("decoder",), drop_layers=1, healed=True)
        compression = collab.compress(native, config, collab.calibrate(native, batches(native, 8)))
        model = collab.Checkpoint(compression.model, tokenizer)
        options = collab.HealOptions("layers", 48, run=self.RUN, beams=2)
        state = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
        healed = collab.heal(model, native, SENTENCES[:48], options=options, work=tmp_path / "work").report
        assert healed.after["kl"] < healed.before["kl"]
        assert healed.settings["beams"] == 2
        (kept,) = (tmp_path / "work").glob(WRITTEN)
        model.model.load_state_dict(state)
        kept.write_text(kept.read_text()[:-5])  # as an interrupted run leaves it
        calls = []
        write = type(native).generate
        monkeypatch.setattr(type(native), "generate", lambda self, **rows: calls.append(1) or write(self, **rows))
        again = collab.heal(model, native, SENTENCES[:48], options=options, work=tmp_path / "work", restart=True).report
        assert len(calls) == 1
        assert again.before == healed.before


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (
                {"flops": 0.5, "stacks": ("decoder",), "drop_layers": 2},
                "1 can be dropped in its decoder",
            ),
            ({"flops": 0.5, "drop_layers": 3}, "2 can be dropped. One must stay"),
            ({"params": 0.05}, "embedding of the vocabulary.*keep-tokens"),
            ({"step_bytes": 0.5, "stacks": ("encoder",)}, "step_bytes=0.5 cannot be reached"),
        ],
    )
    def test_what_cannot_be(self, settings: dict, message: str) -> None:
        with pytest.raises((BudgetError, ConfigurationError), match=message):
            compressed(marian(), **settings)

    def test_settings(self) -> None:
        with pytest.raises(ConfigurationError, match="stacks must name"):
            collab.CompressionConfig(flops=0.5, stacks=("head",))  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="has no decoder"):
            compressed(tiny_model(BERT), step_bytes=0.5)
        with pytest.raises(ConfigurationError, match="names nothing that this model has"):
            compressed(tiny_model(BERT), flops=0.5, only=("cross-values",))

    def test_targets_without_sources(self, tmp_path: Path) -> None:
        save_with_tokenizer(marian(), tmp_path / "model")
        checkpoint = collab.Checkpoint(marian(), BertTokenizerFast.from_pretrained(tmp_path / "model"))
        with pytest.raises(DataError, match="row 2 has a target without a source"):
            collab.calibrate(checkpoint, [PAIRS[0], ("", PAIRS[1][1]), *PAIRS[2:5]])

    def test_forced_tokens_that_are_not_in_the_vocabulary(self, tmp_path: Path) -> None:
        native = marian()
        native.generation_config.forced_bos_token_id = 60
        save_with_tokenizer(native, tmp_path / "model")
        checkpoint = collab.Checkpoint(native, BertTokenizerFast.from_pretrained(tmp_path / "model"))
        with pytest.raises(ConfigurationError, match=r"forces the token 60 \(forced_bos_token_id\)"):
            collab.calibrate(checkpoint, SENTENCES[:8])


def test_the_command(tmp_path: Path) -> None:
    folder = save_with_tokenizer(marian(decoder_layers=3), tmp_path / "model")
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in [("en", "de"), *PAIRS]))
    rows = ("--calibration", tmp_path / "pairs.tsv", "--text-column", "en", "--text-column", "de")
    planned = run("plan", folder, "--whole", "--step-bytes", "0.6", "--step-bytes", "0.4", *rows, "--json")
    assert planned.exit_code == 0, planned.output
    options = json.loads(planned.stdout)["options"]
    assert [option["budget"] for option in options] == [0.6, 0.4]
    assert all(0 < option["reached"] <= option["budget"] < option["step"] < 1 for option in options)
    assert "counts only with --whole" in run("plan", folder, "--step-bytes", "0.6").output
    done = run(
        *("compress", folder, tmp_path / "out", "--step-bytes", "0.6", "--stacks", "decoder", *rows),
        *("--heal-steps", "4", "--json"),
    )
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "out" / "collab_report.json").read_text())
    assert [step["step"] for step in report["history"]] == ["compress", "heal"]
    assert report["history"][0]["step_bytes"]["ratio"] <= 0.6
    assert report["history"][1]["after"]["kl"] <= report["history"][1]["before"]["kl"]
    assert "cross: queries and keys" in (tmp_path / "out" / "README.md").read_text()
