"""Converted models in what people run models with: compile, export, quantization, PEFT, pipelines, accelerate."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tiny import BERT, BY_TYPE, WORDS, converted, full_rank, often, random_model, save_with_tokenizer, tiny_model
from tiny import random_text as text
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AutoModel, PreTrainedModel, pipeline

import collab

VOCABULARY = (*WORDS, "heads", "share")
CONTENTS = ("exact", "folded")
FORMS = [(form, rank, content) for form, rank in (("cp", 8), ("tucker", 8), ("concat", 9)) for content in CONTENTS]
every_layer = pytest.mark.parametrize(("form", "rank", "content"), FORMS)  # 9 of 4 heads is uneven


def states(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**inputs).last_hidden_state


@pytest.fixture(
    scope="module", params=[pytest.param(FORMS, id="all", marks=pytest.mark.exhaustive), [FORMS[0], FORMS[3], FORMS[4]]]
)
def every_kind(request: pytest.FixtureRequest) -> PreTrainedModel:
    """A model of which each layer has another form or content: a graph of it is a graph of them all."""
    layers = [{"form": form, "rank": rank, "content": content} for form, rank, content in request.param]
    config = BERT.family.config_class(**BERT.values | {"num_hidden_layers": len(layers)}, collab_layers=layers)
    return random_model(BERT.family.base, config)


class TestCompilers:
    @pytest.mark.slow
    @pytest.mark.parametrize("backend", often(["aot_eager", "eager"], {"eager"}))
    def test_compile_without_graph_breaks(self, every_kind: PreTrainedModel, backend: str) -> None:
        torch.compiler.reset()
        compiled = torch.compile(every_kind, fullgraph=True, dynamic=True, backend=backend)
        for batch, length in ((2, 6), (3, 11), (5, 20)):
            inputs = text(batch, length)
            torch.testing.assert_close(states(compiled, inputs), states(every_kind, inputs), rtol=0, atol=1e-5)

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
    def test_compile_to_machine_code(self) -> None:
        model = converted(tiny_model(BERT, num_hidden_layers=1))
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True)
        inputs = text(2, 6)
        torch.testing.assert_close(states(compiled, inputs), states(model, inputs), rtol=0, atol=1e-5)

    def test_export(self, every_kind: PreTrainedModel) -> None:
        axes = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
        example = text(2, 6)
        program = torch.export.export(every_kind, (), example, dynamic_shapes=dict.fromkeys(example, axes))
        for batch, length in ((1, 3), (4, 17)):
            inputs = text(batch, length)
            torch.testing.assert_close(states(program.module(), inputs), states(every_kind, inputs), rtol=0, atol=1e-5)


class TestNarrowTypes:
    @every_layer
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_whole_model(self, form: str, rank: int, content: str, dtype: torch.dtype) -> None:
        model, inputs = converted(tiny_model(BERT), rank, form, content=content), text(3, 12)
        expected = states(model, inputs)
        cosine = torch.nn.functional.cosine_similarity
        with torch.autocast("cpu", dtype=dtype):
            mixed = states(model, inputs)
        narrow = states(model.to(dtype), inputs)
        assert narrow.dtype == dtype
        for actual in (mixed, narrow):
            assert not torch.equal(actual.float(), expected)
            assert cosine(actual.float(), expected, dim=-1).min() > 0.999


def test_int8_by_torchao() -> None:
    """Weights in int8, activations as they come; cores and mixing, which are no linear layers, stay."""
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    for form, rank, content in FORMS:
        model = converted(tiny_model(BERT, hidden_size=64, intermediate_size=256), 2 * rank, form, content=content)
        inputs = text(3, 12)
        expected = states(model, inputs)
        before = bytes_of(model.encoder)
        quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
        assert type(model.encoder.layer[0].attention.self.query.weight).__name__ == "Int8Tensor"
        assert bytes_of(model.encoder) < 0.4 * before
        actual = states(model, inputs)
        assert not torch.equal(actual, expected)
        assert torch.nn.functional.cosine_similarity(actual, expected, dim=-1).min() > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("form", ["cp", "concat"])
def test_read_in_int8(form: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model = converted(tiny_model(BERT, hidden_size=64, intermediate_size=256), 32, form).eval()
    model.save_pretrained(tmp_path)
    config = transformers.TorchAoConfig(quantization.Int8WeightOnlyConfig())
    read = AutoModel.from_pretrained(tmp_path, quantization_config=config)
    inputs = text(3, 12)
    expected, actual = (states(each, inputs) for each in (model, read))
    assert torch.nn.functional.cosine_similarity(actual, expected, dim=-1).min() > 0.99


def bytes_of(module: torch.nn.Module) -> int:
    """What a module's weights take, int8 ones with their scales."""
    parts = []
    for parameter in module.parameters():
        names = parameter.__tensor_flatten__()[0] if hasattr(parameter, "__tensor_flatten__") else []
        parts += [getattr(parameter, name) for name in names] or [parameter]
    return sum(part.numel() * part.element_size() for part in parts)


class TestPipelines:
    """On a folder as `collab convert` writes it: with its tokenizer, through the Auto classes."""

    TASKS = {
        "fill-mask": ("BertForMaskedLM", "heads share [MASK]"),
        "text-classification": ("BertForSequenceClassification", "heads share"),
        "feature-extraction": ("BertModel", "heads share"),
        "token-classification": ("BertForTokenClassification", "heads share"),
    }

    @pytest.mark.parametrize("task", TASKS)
    def test_pipeline(self, task: str, tmp_path: Path) -> None:
        """At full rank it answers as the original does."""
        name, given = self.TASKS[task]
        native = random_model(getattr(transformers, name), BERT.config(vocab_size=len(VOCABULARY), pad_token_id=0))
        save_with_tokenizer(native, tmp_path / "native", VOCABULARY)
        config = collab.ConversionConfig(rank=full_rank(native), compare=False)
        none = collab.CalibrationRequest("none")
        collab.checkpoints.convert(str(tmp_path / "native"), tmp_path / "out", config, calibration=none)
        expected = pipeline(task, model=str(tmp_path / "native"))(given)
        runner = pipeline(task, model=str(tmp_path / "out"))
        assert type(runner.model).__name__ == f"Collab{name}"
        assert_close(runner(given), expected)

    def test_speech_recognition(self) -> None:
        """The pipeline knows Whisper by its type, so a converted one has to be named."""
        alphabet = {character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))}
        end = "<|endoftext|>"
        ends = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), end)
        tokenizer = transformers.WhisperTokenizer(vocab=alphabet | {end: 256}, merges=[], **ends)
        tokenizer.add_tokens(["<|startoftranscript|>"], special_tokens=True)
        extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
        config = BY_TYPE["whisper"].config(
            vocab_size=258,
            max_source_positions=50,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 256),
            decoder_start_token_id=257,
        )
        native = random_model(transformers.WhisperForConditionalGeneration, config)
        native.generation_config.update(max_length=10, suppress_tokens=[256, 257], begin_suppress_tokens=[256])
        wave = np.random.default_rng(0).standard_normal(16000).astype("float32") / 10
        texts = []
        for model in (native, converted(native, 1.0)):
            runner = pipeline(
                "automatic-speech-recognition", model=model, feature_extractor=extractor, tokenizer=tokenizer
            )
            runner.type = "seq2seq_whisper"
            texts.append(runner(wave)["text"])
        assert texts[0] == texts[1] != ""


def assert_close(actual: object, expected: object) -> None:
    """The same answers, numbers to rounding."""
    if isinstance(expected, dict):
        assert isinstance(actual, dict)
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(actual[key], value)
    elif isinstance(expected, list):
        assert isinstance(actual, list)
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            assert_close(*pair)
    elif isinstance(expected, str | int) or expected is None:
        assert actual == expected
    else:
        assert float(actual) == pytest.approx(float(expected), abs=1e-4)


class TestPeft:
    @pytest.mark.parametrize("form", ["cp", "tucker", "concat"])
    def test_lora_trained_saved_loaded_merged(self, form: str, tmp_path: Path) -> None:
        peft = pytest.importorskip("peft", reason="peft is not installed")
        model = converted(tiny_model(BERT, transformers.BertForSequenceClassification), form=form)
        base = copy.deepcopy(model)
        settings = peft.LoraConfig(r=2, target_modules=["query", "key", "value"], task_type="SEQ_CLS")
        adapted = peft.get_peft_model(model, settings)
        inputs = text(4, 9)
        before = logits(adapted, inputs)
        optimizer = torch.optim.Adam(
            (parameter for parameter in adapted.parameters() if parameter.requires_grad), lr=0.05
        )
        for _ in range(2):
            adapted(**inputs, labels=torch.tensor([0, 1, 0, 1])).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        trained = logits(adapted, inputs)
        assert (trained - before).abs().max() > 1e-3
        adapted.save_pretrained(tmp_path / "adapter")
        loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
        torch.testing.assert_close(logits(loaded, inputs), trained, rtol=0, atol=1e-6)
        merged = loaded.merge_and_unload()
        assert type(merged).__name__ == "CollabBertForSequenceClassification"
        torch.testing.assert_close(logits(merged, inputs), trained, rtol=0, atol=1e-5)
        merged.save_pretrained(tmp_path / "merged")
        reloaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(logits(reloaded, inputs), trained, rtol=0, atol=1e-5)


def logits(model: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**inputs).logits


class TestTrainer:
    def test_goes_on_from_its_checkpoint(self, tmp_path: Path) -> None:
        """Two steps in one run, and one step, a new process's reload, and another: the same weights."""
        pytest.importorskip("accelerate", reason="the train extra is not installed")
        rows = [{**{name: value[0] for name, value in text(1, 6).items()}, "labels": row % 2} for row in range(8)]

        def train(model: PreTrainedModel, folder: str, steps: int, resume: bool = False) -> PreTrainedModel:
            arguments = transformers.TrainingArguments(
                str(tmp_path / folder),
                max_steps=steps,
                save_steps=1,
                per_device_train_batch_size=4,
                lr_scheduler_type="constant",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            )
            trainer = transformers.Trainer(model, arguments, train_dataset=rows)
            trainer.train(resume_from_checkpoint=resume)
            return trainer.model

        config = BERT.config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        start = converted(random_model(transformers.BertForSequenceClassification, config))
        whole = train(copy.deepcopy(start), "whole", 2)
        train(copy.deepcopy(start), "parts", 1)
        auto_class = transformers.AutoModelForSequenceClassification
        resumed = train(auto_class.from_pretrained(tmp_path / "parts" / "checkpoint-1"), "parts", 2, resume=True)
        for name, tensor in whole.state_dict().items():
            torch.testing.assert_close(resumed.state_dict()[name], tensor, rtol=0, atol=1e-6)
        assert not torch.equal(whole.state_dict()["classifier.weight"], start.state_dict()["classifier.weight"])

    def test_labels_of_decoders_are_shifted_where_they_are_smoothed(self, tmp_path: Path) -> None:
        """Trainer knows by a class's name whether to."""
        native = random_model(transformers.GPT2LMHeadModel, BY_TYPE["gpt2"].config())
        ids = torch.arange(1, 9).repeat(2, 1)
        losses = []
        for model in (native, converted(native, full_rank(native))):
            arguments = transformers.TrainingArguments(
                str(tmp_path), label_smoothing_factor=0.1, use_cpu=True, report_to="none", disable_tqdm=True
            )
            trainer = transformers.Trainer(model.eval(), arguments)
            losses.append(trainer.compute_loss(model, {"input_ids": ids, "labels": ids}).item())
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)

    def test_continuous_batching_is_refused(self) -> None:
        model = converted(random_model(transformers.LlamaForCausalLM, BY_TYPE["llama"].config()))
        with pytest.raises(ValueError, match=r"Use generate\(\), not generate_batch\(\)"):
            model.generate_batch([[1, 2, 3]])


class TestAccelerate:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        pytest.importorskip("accelerate", reason="the train extra is not installed")
        converted(tiny_model(BERT), form="tucker").save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    @pytest.mark.parametrize("device_map", ["cpu", "auto"])
    def test_device_map(self, folder: Path, device_map: str) -> None:
        inputs = text(2, 8)
        expected = states(AutoModel.from_pretrained(folder), inputs)
        assert torch.equal(states(AutoModel.from_pretrained(folder, device_map=device_map), inputs), expected)

    def test_offload_to_disk(self, folder: Path, tmp_path: Path) -> None:
        """Half of the layers are on the disk until they are run."""
        inputs = text(2, 8)
        expected = states(AutoModel.from_pretrained(folder), inputs)
        places = {"embeddings": "cpu", "encoder.layer.0": "cpu", "encoder.layer.1": "disk", "pooler": "cpu"}
        model = AutoModel.from_pretrained(folder, device_map=places, offload_folder=str(tmp_path / "offload"))
        assert model.encoder.layer[1].attention.self.mixing.device.type == "meta"
        assert torch.equal(states(model, inputs), expected)


@pytest.mark.parametrize(
    ("form", "rank", "content"), often([("cp", 8, "exact"), ("concat", 9, "folded")], {"concat-9-folded"})
)
def test_flex_attention_with_a_sliding_window(form: str, rank: int, content: str) -> None:
    """A block mask in flex attention, and the same mask in the other kernels."""
    model, length, window = converted(tiny_model(BERT), rank, form, content=content), 12, 3
    inputs = text(2, length)
    blocks = create_block_mask(lambda b, h, q, k: (q - k).abs() <= window, 2, None, length, length, device="cpu")
    positions = torch.arange(length)
    allowed = ((positions.unsqueeze(1) - positions).abs() <= window).expand(2, 1, -1, -1)  # (B, 1, T, S)
    additive = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    layer = model.encoder.layer[0].attention.self
    hidden = model.embeddings(inputs["input_ids"])
    outputs = {}
    with torch.no_grad():
        for kernel, mask in (("eager", additive), ("sdpa", allowed), ("flex_attention", blocks)):
            model.set_attn_implementation(kernel)
            outputs[kernel] = layer(hidden, attention_mask=mask)[0]
        model.set_attn_implementation("eager")
        everything = layer(hidden)[0]
        whole = states(model, inputs | {"attention_mask": additive})
        model.set_attn_implementation("flex_attention")
        torch.testing.assert_close(states(model, inputs | {"attention_mask": blocks}), whole, rtol=0, atol=1e-5)
    assert (outputs["eager"] - everything).abs().max() > 1e-2
    for kernel in ("sdpa", "flex_attention"):
        torch.testing.assert_close(outputs[kernel], outputs["eager"], rtol=0, atol=1e-5)
