"""Exports: complete, reloadable everywhere, and whole or not there."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import apart
import huggingface_hub
import pytest
import safetensors.torch
import torch
import transformers
from huggingface_hub import ModelCard
from reload import error_without_trust, outputs_without_collab, without_collab
from tiny import (
    BERT,
    BY_TYPE,
    ROWS,
    WORDS,
    by_layers,
    converted,
    every_form,
    full_rank,
    largest_difference,
    often,
    outputs,
    random_model,
    relative_difference,
    tiny_model,
)
from transformers import AutoConfig, AutoModel, PreTrainedModel

import collab
from collab.decomposition import FORMS
from collab.io.read import read_json
from collab.io.verify import verify
from collab.modeling.collab_model import auto_classes
from collab.models.inputs import probe_inputs


def conversion_of(native: PreTrainedModel, rank: int = 8, form: str = "cp") -> collab.Checkpoint:
    return collab.convert(native, collab.ConversionConfig(rank=rank, form=form))


def folders(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("every_head", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_every_kind_of_layers_reloads_without_collab(every_head: bool, tmp_path: Path) -> None:
    """Full rank, through save and reload in another process: equal to the original. Forms and heads take turns.

    Exhaustive for every head of every family.
    """
    jobs, expected = [], []
    for number, row in enumerate(ROWS if every_head else by_layers(ROWS)):
        loaders = {model: name for name, models in auto_classes(row.family.module).items() for model in models}
        models = row.family.models
        for model in models if every_head else (models[number % len(models)],):
            native = random_model(model.native_class(), row.config())
            form = FORMS[len(jobs) % 3]
            folder = tmp_path / model.__name__
            converted(native, full_rank(native), form).save_pretrained(folder)
            jobs.append(
                {"folder": folder, "auto_class": loaders.get(model, "AutoModel"), "inputs": probe_inputs(native)}
            )
            expected.append(outputs(native))
    for job, actual, wanted in zip(jobs, outputs_without_collab(jobs, tmp_path), expected, strict=True):
        assert relative_difference(actual, wanted) < 5e-6, job["folder"].name


@every_form
def test_reload_with_collab(form: str, tmp_path: Path) -> None:
    conversion = conversion_of(tiny_model(BERT, transformers.BertForSequenceClassification), 9, form)
    collab.save(conversion, tmp_path / "out")
    reloaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert type(reloaded) is type(conversion.model)
    assert AutoConfig.from_pretrained(tmp_path / "out").collab_layers == conversion.model.config.collab_layers
    assert largest_difference(outputs(conversion.model), outputs(reloaded)) < 1e-5
    base = AutoModel.from_pretrained(tmp_path / "out")
    assert type(base).__name__ == "CollabBertModel"


@pytest.mark.slow
def test_without_collab_and_without_trust_it_names_the_cure(tmp_path: Path) -> None:
    converted(tiny_model(BERT)).save_pretrained(tmp_path / "out")
    assert "trust_remote_code=True" in error_without_trust(tmp_path / "out", cache=tmp_path / "modules")


@pytest.mark.slow
def test_a_model_saved_from_remote_code_reloads_too(tmp_path: Path) -> None:
    """Fine-tuned where collab is not installed, saved again, loaded again: the code travels on."""
    model = converted(tiny_model(BERT, transformers.BertForMaskedLM))
    model.save_pretrained(tmp_path / "first")
    names = tmp_path / "first", tmp_path / "second", "AutoModelForMaskedLM"
    without_collab(apart.save_again, *names, cache=tmp_path / "elsewhere")
    inputs = probe_inputs(model)
    jobs = [
        {"folder": tmp_path / "second", "auto_class": "AutoModelForMaskedLM", "inputs": inputs},
        {"folder": tmp_path / "second", "auto_class": "AutoModel", "inputs": inputs},
    ]
    actual = outputs_without_collab(jobs, tmp_path)[0]
    assert largest_difference(actual, outputs(model)) < 1e-5
    first, second = (read_json(tmp_path / name / "config.json") for name in ("first", "second"))
    assert first["auto_map"] == second["auto_map"]
    assert verify(tmp_path / "second", model)["weights_equal"]


def test_shipped_code_imports_only_torch_and_transformers() -> None:
    allowed = {"torch", "transformers", "huggingface_hub"} | set(sys.stdlib_module_names)
    for file in (Path(collab.__file__).parent / "modeling").glob("collab_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= allowed, file.name
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1 or (node.module or "").partition(".")[0] in allowed, file.name


def test_large_models_are_sharded(tmp_path: Path) -> None:
    conversion = conversion_of(tiny_model(BERT))
    collab.save(conversion, tmp_path / "out", options=collab.SaveOptions(max_shard_size="20KB"))
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    assert verify(tmp_path / "out", conversion.model)["weights_equal"]


class TestFromACheckpoint:
    """Through `collab.checkpoints.convert`, as the command does it."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        """A BERT embedder with everything around it that embedders have."""
        folder = tmp_path / "source"
        tiny_model(BERT, transformers.BertForMaskedLM).save_pretrained(folder)
        (folder / "vocab.txt").write_text("\n".join([*WORDS, *"0123456789!,%"]))
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
        (folder / "LICENSE").write_text("terms")
        (folder / "unrelated.bin").write_text("left behind")
        (folder / "README.md").write_text(
            "---\nlicense: mit\npipeline_tag: sentence-similarity\nlanguage: en\ntags:\n- mine\n---\n# Model\n"
        )
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(
            json.dumps({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
        )
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20, "do_lower_case": False}))
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"__version__": {}}))
        return folder

    def convert(self, source: Path, output: Path, **settings: object) -> collab.Checkpoint:
        save_options = settings.pop("save_options", collab.SaveOptions())
        save_options, dtype = replace(save_options, command="collab convert …"), settings.pop("dtype", None)
        config = collab.ConversionConfig(**({"rank": 8, "refine": 4} | settings))
        return collab.checkpoints.convert(str(source), output, config, save_options=save_options, dtype=dtype)

    def test_files_of_other_tokenizers(self, tmp_path: Path) -> None:
        folder, out = tmp_path / "source", tmp_path / "out"
        tiny_model(BY_TYPE["roc_bert"]).save_pretrained(folder)
        (folder / "vocab.txt").write_text("\n".join(WORDS))
        for name in ("word_shape.json", "word_pronunciation.json"):
            (folder / name).write_text(json.dumps({word: number for number, word in enumerate(WORDS)}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RoCBertTokenizer"}))
        for name in ("source.spm", "normalizer.json"):  # of Marian and Whisper
            (folder / name).write_text("anything")
        self.convert(folder, out)
        assert transformers.AutoTokenizer.from_pretrained(out).get_vocab().keys() == {*WORDS}
        assert {"source.spm", "normalizer.json", "word_shape.json"} <= folders(out)

    def test_files(self, source: Path, tmp_path: Path) -> None:
        report = self.convert(source, tmp_path / "out").history.report
        assert folders(tmp_path / "out") == {
            "1_Pooling",
            "LICENSE",
            "README.md",
            "collab_attention.py",
            "collab_cache.py",
            "collab_kernel.py",
            "collab_long.py",
            "collab_bert.py",
            "collab_config.py",
            "collab_feed_forward.py",
            "collab_family.py",
            "collab_files.txt",
            "collab_forgetting.py",
            "collab_model.py",
            "collab_native.py",
            "collab_projections.py",
            "collab_step.py",
            "collab_report.json",
            "config.json",
            "config_sentence_transformers.json",
            "model.safetensors",
            "modules.json",
            "sentence_bert_config.json",
            "tokenizer_config.json",
            "vocab.txt",
        }
        assert folders(tmp_path) == {"source", "out"}
        assert json.loads((tmp_path / "out" / "collab_report.json").read_text()) == report
        assert report["verification"]["weights_equal"] is True
        assert report["source"] == str(source)

    def test_card(self, source: Path, tmp_path: Path) -> None:
        self.convert(source, tmp_path / "out", save_options=collab.SaveOptions(base_model="someone/original"))
        card = ModelCard.load(tmp_path / "out" / "README.md")
        data = card.data.to_dict()
        assert data["base_model"] == "someone/original"
        assert data["license"] == "mit"
        assert data["pipeline_tag"] == "sentence-similarity"
        assert data["library_name"] == "sentence-transformers"
        assert {"mine", "collab", "collaborative-attention"} <= set(data["tags"])
        for text in (
            "collab convert …",
            "bert.encoder.layer.1.attention.self",
            "transformers 5",
            '"seed": 0',
            "trust_remote_code",
        ):
            assert text in card.text, text

    @pytest.mark.slow
    def test_tokenizer_and_sentence_transformer_without_collab(self, source: Path, tmp_path: Path) -> None:
        sentence_transformers = pytest.importorskip("sentence_transformers", reason="the demo extra is not installed")
        self.convert(source, tmp_path / "out", rank=32)
        sentences = ["abc def", "a", "zzz 123 !"]
        original = sentence_transformers.SentenceTransformer(str(source)).encode(sentences, convert_to_tensor=True)
        job = {"folder": tmp_path / "out", "auto_class": "SentenceTransformer", "sentences": sentences}
        actual = outputs_without_collab([job], tmp_path)[0]["embeddings"]
        torch.testing.assert_close(actual, original, rtol=1e-5, atol=1e-5)
        # The source left the tokenizer's class to the model type, which is another one now.
        settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
        assert settings == {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}

    @pytest.mark.slow
    def test_cross_encoder_without_collab(self, source: Path, tmp_path: Path) -> None:
        sentence_transformers = pytest.importorskip("sentence_transformers", reason="the demo extra is not installed")
        for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
            (source / name).unlink()
        tiny_model(BERT, transformers.BertForSequenceClassification, num_labels=1).save_pretrained(source)
        self.convert(source, tmp_path / "out", rank=32)
        pair = ["abc def", "def 12"]
        expected = sentence_transformers.CrossEncoder(str(source)).predict([pair] * 2, convert_to_tensor=True)
        job = {"folder": tmp_path / "out", "auto_class": "CrossEncoder", "sentences": pair}
        torch.testing.assert_close(outputs_without_collab([job], tmp_path)[0]["scores"], expected, rtol=1e-4, atol=1e-5)

    def test_weights_without_a_place_in_the_model_are_kept(self, source: Path, tmp_path: Path) -> None:
        """A language model's checkpoint often has a pooler that only other heads use."""
        native = transformers.BertForPreTraining.from_pretrained(source)
        native.config.architectures = ["BertForMaskedLM"]
        pooler = native.bert.pooler.dense.weight.clone()
        native.save_pretrained(source)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
        self.convert(source, tmp_path / "out")
        assert torch.equal(AutoModel.from_pretrained(tmp_path / "out").pooler.dense.weight, pooler)

    def test_missing_weights_are_initialized_by_seed_and_said(self, source: Path, tmp_path: Path) -> None:
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
        reports = [self.convert(source, tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
        assert "pooler.dense.weight" in reports[0].history.report["notes"][0]
        a, b, c = (AutoModel.from_pretrained(tmp_path / name).pooler.dense.weight for name in "abc")
        assert torch.equal(a, b)
        assert not torch.equal(a, c)

    @pytest.mark.parametrize("dtype", often([torch.bfloat16, torch.float16], {"torch.float16"}))
    def test_dtype(self, source: Path, tmp_path: Path, dtype: torch.dtype) -> None:
        self.convert(source, tmp_path / "narrow", dtype=dtype)
        narrow = AutoModel.from_pretrained(tmp_path / "narrow")
        assert narrow.dtype == dtype
        transformers.BertForMaskedLM.from_pretrained(source, dtype=dtype).save_pretrained(tmp_path / "narrow-source")
        self.convert(tmp_path / "narrow-source", tmp_path / "kept")
        assert AutoModel.from_pretrained(tmp_path / "kept").dtype == dtype
        self.convert(tmp_path / "narrow-source", tmp_path / "wide", dtype=torch.float32)
        wide = AutoModel.from_pretrained(tmp_path / "wide").encoder.layer[0].attention.self.query.weight
        assert wide.dtype == torch.float32
        assert not torch.equal(wide, wide.to(dtype).float()), "the factors were not rounded"

    def test_pickled_weights(self, source: Path, tmp_path: Path) -> None:
        native = transformers.BertForMaskedLM.from_pretrained(source)
        torch.save(native.state_dict(), source / "pytorch_model.bin")
        (source / "model.safetensors").unlink()
        report = self.convert(source, tmp_path / "out", rank=32)
        assert max(layer.error for layer in report.report.layers) < 1e-12

    def test_sharded_weights(self, source: Path, tmp_path: Path) -> None:
        native = transformers.BertForMaskedLM.from_pretrained(source)
        (source / "model.safetensors").unlink()
        native.save_pretrained(source, max_shard_size="20KB")
        self.convert(source, tmp_path / "out")

    def test_overwrite(self, source: Path, tmp_path: Path) -> None:
        self.convert(source, tmp_path / "out")
        with pytest.raises(collab.errors.OutputError, match="overwrite"):
            self.convert(source, tmp_path / "out", rank=4)
        assert AutoConfig.from_pretrained(tmp_path / "out").collab_layers[0]["rank"] == 8
        self.convert(source, tmp_path / "out", rank=4, save_options=collab.SaveOptions(overwrite=True))
        assert AutoConfig.from_pretrained(tmp_path / "out").collab_layers[0]["rank"] == 4
        assert folders(tmp_path) == {"source", "out"}

    @pytest.mark.parametrize("name", often(["notes.txt", ".git/HEAD", "runs/loss.csv"], {"runs/loss.csv"}))
    def test_what_collab_did_not_write_is_never_overwritten(self, source: Path, tmp_path: Path, name: str) -> None:
        self.convert(source, tmp_path / "out")
        mine = tmp_path / "out" / name
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine")
        with pytest.raises(collab.errors.OutputError, match=name):
            self.convert(source, tmp_path / "out", save_options=collab.SaveOptions(overwrite=True))
        assert mine.read_text() == "mine"

    def test_a_folder_that_appears_meanwhile_is_left_alone(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def appear(*arguments: object) -> dict:
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "mine").write_text("mine")
            return verify(*arguments)

        monkeypatch.setattr("collab.io.write.verify", appear)
        with pytest.raises(collab.errors.OutputError, match="appeared or changed"):
            self.convert(source, tmp_path / "out")
        assert folders(tmp_path) == {"source", "out"}
        assert folders(tmp_path / "out") == {"mine"}

    def test_a_dtype_too_small_for_a_weight(self, source: Path, tmp_path: Path) -> None:
        native = transformers.BertForMaskedLM.from_pretrained(source)
        with torch.no_grad():
            native.bert.embeddings.word_embeddings.weight[3, 3] = 1e5
        for dtype in (torch.float32, torch.bfloat16):
            native.to(dtype).save_pretrained(source)
            with pytest.raises(collab.errors.WeightsError, match=r"word_embeddings.weight does not fit float16"):
                self.convert(source, tmp_path / "out", dtype=torch.float16)
        assert folders(tmp_path) == {"source"}

    def test_unused_weights_take_the_dtype_too(self, source: Path, tmp_path: Path) -> None:
        weights = safetensors.torch.load_file(source / "model.safetensors")
        safetensors.torch.save_file(
            weights | {"bert.pooler.dense.bias": torch.ones(32)}, source / "model.safetensors", {"format": "pt"}
        )
        self.convert(source, tmp_path / "out", dtype=torch.bfloat16)
        written = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
        assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}

    @pytest.mark.parametrize("name", ["modules.json", "preprocessor_config.json"])
    def test_broken_files_beside_the_weights(self, source: Path, tmp_path: Path, name: str) -> None:
        (source / name).write_text("{")
        with pytest.raises(collab.errors.CheckpointError, match=name):
            self.convert(source, tmp_path / "out")
        assert folders(tmp_path) == {"source"}

    def test_from_the_hubs_cache(self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A Hub id, with no Hub in reach but the model in the local cache."""
        commit = "0123456789012345678901234567890123456789"
        cache = tmp_path / "hub"
        repository = cache / "models--someone--original"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(commit)
        shutil.copytree(source, repository / "snapshots" / commit)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        history = self.convert("someone/original", tmp_path / "out").history
        assert (history.source, history.revision) == ("someone/original", commit)
        assert ModelCard.load(tmp_path / "out" / "README.md").data.base_model == "someone/original"
        with pytest.raises(collab.errors.CheckpointError, match="was not found on the Hugging Face Hub"):
            self.convert("someone/else", tmp_path / "other")


def test_image_processor_is_carried_over(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="pillow is not installed")
    source = tmp_path / "source"
    tiny_model(BY_TYPE["vit"], transformers.ViTForImageClassification).save_pretrained(source)
    (source / "preprocessor_config.json").write_text(json.dumps({"do_normalize": True, "size": 16}))
    collab.checkpoints.convert(str(source), tmp_path / "out", collab.ConversionConfig(rank=8, refine="none"))
    settings = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert settings["image_processor_type"].startswith("ViTImageProcessor")
    assert type(transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")).__name__.startswith(
        "ViTImageProcessor"
    )


def test_generation_config_is_carried_over(tmp_path: Path) -> None:
    native = random_model(transformers.BertLMHeadModel, BERT.config(is_decoder=True))
    native.generation_config.max_new_tokens = 7
    native.save_pretrained(tmp_path / "source")
    collab.checkpoints.convert(
        str(tmp_path / "source"), tmp_path / "out", collab.ConversionConfig(rank=8, refine="none")
    )
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "out").max_new_tokens == 7


@pytest.mark.parametrize("by_saving", [False, True])
def test_push_to_hub_sends_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_saving: bool) -> None:
    sent: list[str] = []

    def create(self: object, repo_id: str, **_: object) -> huggingface_hub.RepoUrl:
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    def commit(self: object, operations: list, **_: object) -> None:
        sent.extend(operation.path_in_repo for operation in operations)

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", create)
    monkeypatch.setattr("huggingface_hub.HfApi.create_commit", commit)
    monkeypatch.setattr("huggingface_hub.HfApi.create_branch", lambda *_, **__: None)
    model = converted(tiny_model(BERT))
    if by_saving:
        model.save_pretrained(tmp_path / "mine", push_to_hub=True, repo_id="me/mine")
    else:
        model.push_to_hub("me/mine")
    assert {"config.json", "model.safetensors", "collab_bert.py", "collab_attention.py"} <= set(sent)


def test_card_of_a_model_in_memory(tmp_path: Path) -> None:
    native = tiny_model(BERT, transformers.BertForPreTraining)
    native.config._name_or_path = "google/thing"
    native.name_or_path = "google/thing"
    collab.save(conversion_of(native), tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "google/thing"
    assert "AutoModelForPreTraining.from_pretrained" in card.text


@pytest.mark.parametrize("size", ["5", "0GB", "many", ""])
def test_shard_sizes_that_are_none(size: str) -> None:
    with pytest.raises(collab.errors.ConfigurationError, match="is not a size"):
        collab.SaveOptions(max_shard_size=size)


def test_models_with_few_positions(tmp_path: Path) -> None:
    """The check's own inputs must fit them."""
    collab.save(conversion_of(tiny_model(BERT, max_position_embeddings=2)), tmp_path / "bert")
    roberta = tiny_model(BY_TYPE["roberta"], max_position_embeddings=8, pad_token_id=5)
    collab.save(conversion_of(roberta), tmp_path / "roberta")


@pytest.mark.parametrize("renamed", [False, True])
def test_verification_notices_a_changed_weight(renamed: bool, tmp_path: Path) -> None:
    """Also where transformers writes weights under the names of older versions, as those of a native ViT."""
    model = tiny_model(BY_TYPE["vit"]) if renamed else converted(tiny_model(BERT))
    name = "layers.0.attention.q_proj.bias" if renamed else "pooler.dense.bias"
    model.save_pretrained(tmp_path / "out")
    assert (name in safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")) is not renamed
    assert verify(tmp_path / "out", model)["weights_equal"]
    with torch.no_grad():
        model.get_parameter(name)[0] += 1e-3
    with pytest.raises(collab.errors.VerificationError, match=name.replace(".", r"\.")):
        verify(tmp_path / "out", model)


def test_nothing_is_left_when_verification_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise collab.errors.VerificationError("no")

    monkeypatch.setattr("collab.io.write.verify", fail)
    with pytest.raises(collab.errors.VerificationError):
        collab.save(conversion_of(tiny_model(BERT)), tmp_path / "deep" / "out")
    assert folders(tmp_path) == set()


def test_trainer_checkpoints_hold_the_code(tmp_path: Path) -> None:
    """A checkpoint written during training is an export too."""
    model = converted(tiny_model(BERT, transformers.BertForSequenceClassification))
    rows = [{"input_ids": [5, 6, 7], "labels": label} for label in (0, 1, 0, 1)]
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=2,
        save_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    transformers.Trainer(model, arguments, train_dataset=rows).train()
    assert (tmp_path / "checkpoint-2" / "collab_attention.py").is_file()
    assert verify(tmp_path / "checkpoint-2", model)["weights_equal"]
