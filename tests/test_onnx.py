"""Models as ONNX graphs: they compute what PyTorch computes, at any batch size and length."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from huggingface_hub import ModelCard
from processes import run
from reload import run_without_collab
from tiny import (
    BERT,
    BY_TYPE,
    converted,
    random_model,
    random_text,
    save_with_tokenizer,
    tensors,
    tiny_model,
)
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
    Wav2Vec2FeatureExtractor,
)

import collab
from collab.errors import ConfigurationError
from collab.graphs.samples import sample
from collab.graphs.served import session_of
from collab.models.inputs import random_inputs
from collab.steps.measurement import Speed

onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")
ort = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytest.importorskip("onnxscript", reason="the onnx extra is not installed")

pytestmark = pytest.mark.slow
close = partial(torch.testing.assert_close, rtol=0, atol=1e-4)


def saved(model: PreTrainedModel, tmp_path: Path) -> str:
    model.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def export(*arguments: object) -> Result:
    return run("export", *arguments, "--format", "onnx")


def run_graph(file: Path, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {name: value.numpy() for name, value in inputs.items()}), strict=True))


def text(batch: int, length: int, types: bool = True) -> dict[str, torch.Tensor]:
    """Random tokens, the last row padded on the left."""
    return random_text(batch, length, left=True, types=types)


FORMS = [("cp", 8, "exact"), ("tucker", 8, "folded"), ("concat", 9, "exact")]  # 9 of 4 heads is uneven


@pytest.mark.exhaustive
@pytest.mark.parametrize(("form", "rank", "content"), FORMS)
def test_every_form(form: str, rank: int, content: str, tmp_path: Path) -> None:
    """At batch sizes and lengths that were neither traced nor checked by the export itself."""
    model = converted(tiny_model(BERT, num_hidden_layers=1), rank, form, content=content)
    step = collab.checkpoints.export(saved(model, tmp_path), tmp_path / "out")
    assert step.report.verification["model.onnx"]["largest_difference"] < 1e-4
    assert len({tuple(shape) for shape in step.report.verification["model.onnx"]["shapes"]}) == 5
    for batch, length in ((1, 2), (5, 3), (2, 40)):
        inputs = text(batch, length)
        with torch.no_grad():
            expected = model(**inputs)
        actual = run_graph(tmp_path / "out" / "model.onnx", inputs)
        assert list(actual) == ["last_hidden_state", "pooler_output"]
        seen = inputs["attention_mask"].bool().numpy()
        np.testing.assert_allclose(actual["last_hidden_state"][seen], expected[0].numpy()[seen], rtol=0, atol=1e-4)
        np.testing.assert_allclose(actual["pooler_output"], expected[1].numpy(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("model_type", "form"),
    [
        ("jina_embeddings_v3", "tucker"),
        *(
            pytest.param(*others, marks=pytest.mark.exhaustive)
            for others in (
                ("deberta-v2", "cp"),
                *((model_type, "cp") for model_type in ("distilbert", "mpnet", "modernbert", "deit", "beit", "wavlm")),
                ("jina_embeddings_v3", "concat"),
                ("jina_embeddings_v3", "cp"),
                ("eurobert", "tucker"),
                ("dinov3_vit", "tucker"),
            )
        ),
    ],
)
def test_other_families(model_type: str, form: str, tmp_path: Path) -> None:
    model = converted(tiny_model(BY_TYPE[model_type], num_hidden_layers=1), 8, form)
    step = collab.checkpoints.export(saved(model, tmp_path), tmp_path / "out")
    for batch, length in ((3, 11), (1, 2), (5, 3)):
        reads_text = model.main_input_name == "input_ids"
        inputs = text(batch, length, types=False) if reads_text else random_inputs(model, batch, length)
        if "token_type_ids" in step.report.inputs:
            inputs["token_type_ids"] = torch.ones(batch, length, dtype=torch.long)
        assert set(inputs) == set(step.report.inputs)
        with torch.no_grad():
            expected = model(**inputs)[0].numpy()
        actual = run_graph(tmp_path / "out" / "model.onnx", inputs)["last_hidden_state"]
        seen = inputs["attention_mask"].bool().numpy() if "attention_mask" in inputs else ...
        np.testing.assert_allclose(actual[seen], expected[seen], rtol=0, atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("model_type", ["layoutlm", "markuplm", "tapas"])
def test_what_a_model_reads_of_every_token_is_an_input(model_type: str, tmp_path: Path) -> None:
    """Boxes of words, paths of elements or cells of tables; the graph is checked on random ones."""
    model = tiny_model(BY_TYPE[model_type], num_hidden_layers=1)
    report = collab.checkpoints.export(saved(model, tmp_path), tmp_path / "out").report
    graph = collab.checkpoints.load_exported(tmp_path / "out").model
    further = {"layoutlm": ["bbox"], "markuplm": ["xpath_tags_seq", "xpath_subs_seq"], "tapas": []}[model_type]
    assert report.inputs == ["input_ids", "attention_mask", "token_type_ids", *further]
    inputs = sample(model, 3, 11, torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        close(graph(**inputs)["last_hidden_state"], expected)
        alone = {"input_ids": inputs["input_ids"]}  # what is not given is what the model makes of that
        actual = graph(**alone, attention_mask=None, labels=torch.zeros(3))["last_hidden_state"]
        close(actual, model(**alone).last_hidden_state)
    with pytest.raises(ConfigurationError, match="does not read lang_ids"):
        graph(**inputs, lang_ids=torch.zeros(3, dtype=torch.long))


@pytest.mark.exhaustive
def test_ranges_and_speed_where_a_model_reads_more_than_text(tmp_path: Path) -> None:
    folder = saved(tiny_model(BY_TYPE["tapas"]), tmp_path)
    options = collab.ExportOptions("onnx", "int8")
    assert collab.checkpoints.export(folder, tmp_path / "out", options, measure_speed=True).step(Speed) is not None


@pytest.mark.exhaustive
def test_recordings(tmp_path: Path) -> None:
    """They come without padding, since their graph reads no mask; the card reads recordings."""
    model = tiny_model(BY_TYPE["wav2vec2"], num_hidden_layers=1)
    folder = saved(model, tmp_path)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    collab.checkpoints.export(folder, tmp_path / "out")
    graph = collab.checkpoints.load_exported(tmp_path / "out").model
    inputs = random_inputs(model, 2, 5)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
    mask = torch.ones_like(inputs["input_values"], dtype=torch.long)
    close(graph(**inputs, attention_mask=mask)["last_hidden_state"], expected)
    mask[1, -3:] = 0
    with pytest.raises(ConfigurationError, match="does not read attention_mask"):
        graph(**inputs, attention_mask=mask)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "AutoFeatureExtractor" in card
    assert "AutoTokenizer" not in card
    assert "of any batch size and length, without padding" in card


@pytest.mark.exhaustive
def test_a_native_head_with_three_axes(tmp_path: Path) -> None:
    model = tiny_model(BERT, BertForMultipleChoice, num_hidden_layers=1)
    collab.checkpoints.export(saved(model, tmp_path), tmp_path / "out")
    inputs = {name: value.unsqueeze(0).repeat(3, 1, 1) for name, value in text(4, 9).items()}  # 4 choices
    with torch.no_grad():
        expected = model(**inputs).logits.numpy()
    np.testing.assert_allclose(
        run_graph(tmp_path / "out" / "model.onnx", inputs)["logits"], expected, rtol=0, atol=1e-4
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Result]:
    """A converted classifier in half precision with a tokenizer, and its export by the command, int8 too."""
    folder = tmp_path_factory.mktemp("onnx")
    native = random_model(BertForSequenceClassification, BERT.config())
    native.config.output_hidden_states = True  # which the graph leaves out
    save_with_tokenizer(native, folder / "native")
    (folder / "native" / "README.md").write_text("---\nlicense: mit\ntags:\n- mine\n---\n# Model\n")
    config = collab.ConversionConfig(rank=8, form="tucker")
    collab.checkpoints.convert(
        str(folder / "native"),
        folder / "model",
        config,
        calibration=collab.CalibrationRequest("none"),
        dtype=torch.float16,
    )
    return folder / "model", folder / "out", export(folder / "model", folder / "out", "--int8", "--json")


class TestCommand:
    def test_folder(self, exported: tuple[Path, Path, Result]) -> None:
        model, out, result = exported
        assert result.exit_code == 0, result.output
        record = json.loads(result.stdout)
        report = json.loads((out / "collab_report.json").read_text())
        assert report["speed"] == record.pop("speed")
        assert report["history"] == [record]
        assert report["layers"] == json.loads((model / "collab_report.json").read_text())["layers"]
        assert record["outputs"] == ["logits"]
        for name, size in record["bytes"].items():
            assert (out / name).stat().st_size == size
            onnx.checker.check_model(str(out / name))
        assert {path.suffix for path in out.iterdir()} == {".json", ".md", ".onnx", ".txt"}
        assert json.loads((out / "config.json").read_text())["collab_layers"][0]["form"] == "tucker"
        card = ModelCard.load(out / "README.md")
        assert card.data.to_dict()["license"] == "mit"
        assert {"mine", "onnx"} <= set(card.data.tags)
        assert "## Graph" in card.text
        assert f"{record['verification']['model.onnx']['largest_difference']:.1e}" in card.text
        assert {path.name for path in out.parent.iterdir()} == {"native", "model", "out"}

    def test_int8(self, exported: tuple[Path, Path, Result]) -> None:
        """Smaller, near, and not the same; the weights are integers, and the cores, which must not be, are not."""
        _, out, result = exported
        record = json.loads(result.stdout)
        check = record["verification"]["model_quantized.onnx"]
        assert check["lowest_cosine"] > 0.98
        assert 1e-4 < check["mean_difference"] < 0.1
        small = onnx.load(str(out / "model_quantized.onnx")).graph
        types = {len(weight.dims): set() for weight in small.initializer}
        for weight in small.initializer:
            types[len(weight.dims)].add(onnx.TensorProto.DataType.Name(weight.data_type))
        assert "INT8" in types[2]
        assert types[3] == {"FLOAT"}
        assert session_of(collab.checkpoints.load_exported(out).model).precision == "int8"
        assert session_of(collab.checkpoints.load_exported(out / "model.onnx").model).precision == "float32"

    def test_card_runs_where_collab_is_not(self, exported: tuple[Path, Path, Result], tmp_path: Path) -> None:
        model, out, _ = exported
        card = ModelCard.load(out / "README.md").text
        code = card.partition("```python\n")[2].partition("```")[0].replace("FOLDER", str(out))
        code = f"import sys; sys.modules['collab'] = None\n{code}\nprint(outputs[0].tolist())\n"
        done = run_without_collab(code, cache=tmp_path / "modules")
        assert done.returncode == 0, done.stderr
        loaded = collab.load(str(model))
        batch = loaded.tokenizer(["a sentence", "another"], padding=True, return_tensors="pt")
        with torch.no_grad():
            expected = loaded.model.float()(**batch).logits.numpy()
        assert "model_quantized.onnx" in code  # who asks for int8 is shown how to run it
        small = ort.InferenceSession(out / "model_quantized.onnx")
        inputs = {entry.name: batch[entry.name].numpy() for entry in small.get_inputs()}
        actual = np.array(json.loads(done.stdout))
        np.testing.assert_allclose(actual, small.run(None, inputs)[0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=0.1)

    @pytest.mark.parametrize("more", [(), pytest.param(("--int8", "--no-speed"), marks=pytest.mark.exhaustive)])
    def test_tables(self, more: tuple[str, ...], tmp_path: Path) -> None:
        folder = saved(converted(tiny_model(BY_TYPE["vit"], num_hidden_layers=1)), tmp_path)
        result = export(folder, tmp_path / "out", *more)
        assert result.exit_code == 0, result.output
        for text_part in ("model.onnx", *(["model_quantized.onnx"] if more else []), "largest difference", "Wrote"):
            assert text_part in result.stdout
        assert ("model_quantized" in result.stdout) == bool(more)
        assert "times as fast" not in result.stdout
        assert AutoConfig.from_pretrained(tmp_path / "out").model_type == "vit"  # which every library knows


def test_sentence_embeddings(demo_folder: Path, tmp_path: Path) -> None:
    """A layer of a real embedder: the graph with sentence-transformers' own pooling, from the folder alone."""
    models = pytest.importorskip("sentence_transformers", reason="the demo extra is not installed")
    shutil.copytree(demo_folder, tmp_path / "source", ignore=shutil.ignore_patterns("*.safetensors"))
    BertModel.from_pretrained(demo_folder, num_hidden_layers=1).save_pretrained(tmp_path / "source")
    none = collab.CalibrationRequest("none")
    config = collab.ConversionConfig(rank=64, form="concat", compare=False)
    collab.checkpoints.convert(str(tmp_path / "source"), tmp_path / "model", config, calibration=none)
    step = collab.checkpoints.export(str(tmp_path / "model"), tmp_path / "out")
    assert step.report.bytes["model.onnx"] > 50e6
    sentences = ["Heads collaborate.", "Not at all, and at some length, says the other sentence.", "a"]
    expected = models.SentenceTransformer(str(tmp_path / "model")).encode(sentences, convert_to_tensor=True)
    batch = dict(AutoTokenizer.from_pretrained(tmp_path / "out")(sentences, padding=True, return_tensors="pt"))
    states = torch.from_numpy(run_graph(tmp_path / "out" / "model.onnx", batch)["last_hidden_state"])
    features = {"token_embeddings": states, "attention_mask": batch["attention_mask"]}
    pooling = models.models.Pooling.load(str(tmp_path / "out" / "1_Pooling"))
    actual = torch.nn.functional.normalize(pooling(features)["sentence_embedding"], dim=-1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


class TestRefusals:
    def refused(self, error: type[Exception], match: str, *arguments: object) -> None:
        output = Path(str(arguments[1]))
        before = sorted(output.parent.rglob("*"))
        result = export(*arguments)
        assert result.exit_code in (1, 2)
        assert match in " ".join(result.stderr.split()), result.output
        assert "Traceback" not in result.output
        with pytest.raises(error):
            collab.checkpoints.export(*map(str, arguments))
        assert sorted(output.parent.rglob("*")) == before

    def test_a_graph_that_computes_something_else(
        self, exported: tuple[Path, Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Instead of writing a graph, that of before is copied, and one of its weights changed."""
        model, out, _ = exported

        def spoil(*arguments: object) -> int:
            graph = onnx.load(str(out / "model.onnx"))
            bias = next(weight for weight in graph.graph.initializer if weight.name.endswith("classifier.bias"))
            values = onnx.numpy_helper.to_array(bias).copy()
            values[0] += 1e-2
            bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
            onnx.save(graph, str(arguments[1]))
            return graph.opset_import[0].version

        monkeypatch.setattr(importlib.import_module("collab.graphs.write"), "write_graph", spoil)
        self.refused(collab.errors.VerificationError, "logits", model, tmp_path / "out")

    def test_without_the_extra(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        model = saved(tiny_model(BERT, num_hidden_layers=1), tmp_path)
        self.refused(collab.errors.ExtraError, "onnxruntime: pip install 'collab[onnx]'", model, tmp_path / "out")

    def test_output_is_there(self, tmp_path: Path) -> None:
        model = saved(tiny_model(BERT, num_hidden_layers=1), tmp_path)
        self.refused(collab.errors.OutputError, "input folder", model, model)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "file").write_text("mine")
        self.refused(collab.errors.OutputError, "did not write", model, tmp_path / "mine")

    def test_a_column_of_nothing(self, tmp_path: Path) -> None:
        done = run("export", tmp_path, tmp_path / "out", "--format", "onnx", "--text-column", "a")
        assert done.exit_code == 2
        assert "--calibration" in done.stderr

    def test_no_model(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        self.refused(collab.errors.CheckpointError, "config.json", tmp_path / "empty", tmp_path / "out")


def test_the_model_is_left_as_it_was() -> None:
    """Tracing changes the kernel only for a while."""
    from collab.graphs.trace import Graph

    model = converted(tiny_model(BERT, num_hidden_layers=1))
    before = model.config._attn_implementation
    inputs = text(2, 5)
    with torch.no_grad():
        outputs = Graph(model)(inputs)
        assert torch.equal(outputs[0], tensors(model(**inputs))["last_hidden_state"])
    assert model.config._attn_implementation == before == "sdpa"
