"""Graphs for OpenVINO, and graphs of any runtime that are evaluated, compared and timed like models."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import run
from reload import run_without_collab
from tiny import BERT, BY_TYPE, LETTERS, converted, random_model, random_text, save_with_tokenizer, tiny_model
from transformers import BertForSequenceClassification, PreTrainedModel, ViTForImageClassification

import collab
from collab.checkpoints.serving import GraphTimer
from collab.errors import OutputError
from collab.graphs.served import find_graph, load_graph
from collab.models.inputs import random_inputs
from collab.steps.measurement import Speed

pytest.importorskip("onnxscript", reason="the openvino extra is not installed")
openvino = pytest.importorskip("openvino", reason="the openvino extra is not installed")
pytest.importorskip("nncf", reason="the openvino extra is not installed")

pytestmark = pytest.mark.slow
TEXT = [" ".join(LETTERS[(i * 7 + j * j) % 26] for j in range(2 + i % 9)) for i in range(64)]
INT8 = collab.ExportOptions("openvino", "int8")
FLOAT = collab.ExportOptions("openvino")


def served(model: PreTrainedModel, tmp_path: Path, options: collab.ExportOptions = FLOAT) -> PreTrainedModel:
    """The graph of a model, as a model."""
    model.save_pretrained(tmp_path / "model")
    collab.checkpoints.export(str(tmp_path / "model"), tmp_path / "out", options)
    found = find_graph(str(tmp_path / "out"))
    assert found is not None
    return load_graph(*found).model


def has_vnni() -> bool:
    """Whether the processor is known to have VNNI, without which sums of int8 products overflow."""
    file = Path("/proc/cpuinfo")
    return file.is_file() and "vnni" in file.read_text()


class TestGraph:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(("form", "rank"), [("tucker", 8), ("concat", 9)])
    def test_forms(self, form: str, rank: int, tmp_path: Path) -> None:
        model = converted(tiny_model(BERT, num_hidden_layers=1), rank, form)
        graph = served(model, tmp_path)
        for batch, length in ((1, 2), (5, 3), (2, 40)):
            inputs = random_text(batch, length, types=True)
            with torch.no_grad():
                expected, actual = (each(**inputs).last_hidden_state for each in (model, graph))
            seen = inputs["attention_mask"].bool()
            torch.testing.assert_close(actual[seen], expected[seen], rtol=0, atol=1e-4)
        by_position = graph(*(inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")))
        assert torch.equal(by_position.last_hidden_state, actual)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("model_type", ["vit", "deberta-v2"])
    def test_families_in_int8(self, model_type: str, tmp_path: Path) -> None:
        model = converted(tiny_model(BY_TYPE[model_type]))
        model.save_pretrained(tmp_path / "model")
        text = model.main_input_name == "input_ids"
        options = INT8 if text else collab.ExportOptions("openvino", "bfloat16")
        step = collab.checkpoints.export(str(tmp_path / "model"), tmp_path / "out", options)
        check = step.report.verification["openvino_model.xml"]
        capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if text or "BF16" in capabilities:  # a processor without bfloat16 computes in float32
            assert check["mean_difference"] > 1e-6
        assert check["lowest_cosine"] > 0.9
        assert (step.report.agreement is not None) == text

    @pytest.mark.exhaustive
    def test_compressed(self, tmp_path: Path) -> None:
        model = tiny_model(BERT)
        batches = [random_inputs(model, 4, 8, seed=seed) for seed in range(12)]
        small = collab.compress(model, collab.CompressionConfig(flops=0.5), collab.calibrate(model, batches)).model
        inputs = random_text(3, 7, types=True)
        with torch.no_grad():
            expected, actual = (each(**inputs).pooler_output for each in (small, served(small, tmp_path)))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, text, labelled rows, and its int8 graph by the command."""
    folder = tmp_path_factory.mktemp("openvino")
    save_with_tokenizer(random_model(BertForSequenceClassification, BERT.config()), folder / "model")
    (folder / "text.txt").write_text("\n".join(TEXT))
    (folder / "dev.tsv").write_text("sentence\tlabel\n" + "\n".join(f"{row}\t{i % 2}" for i, row in enumerate(TEXT)))
    done = run(
        *("export", folder / "model", folder / "served", "--format", "openvino", "--precision", "int8", "--json"),
        *("--calibration", folder / "text.txt", "--calibration", "synthetic"),
    )
    assert done.exit_code == 0, done.output
    (folder / "record.json").write_text(done.stdout)
    return folder


def test_a_model_is_there_though_its_graph_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("collab.checkpoints.serving")

    def fail(*_: object, **__: object) -> None:
        raise OutputError("There is no room.")

    monkeypatch.setattr(module, "serve", fail)
    folder = save_with_tokenizer(tiny_model(BERT), tmp_path / "model")
    options = ("--flops", 0.6, "--heal-steps", 0, "--drop-layers", 0, "--runtime", "openvino")
    done = run("compress", folder, tmp_path / "out", *options)
    assert done.exit_code == 1
    said = " ".join(done.stderr.split())
    assert "There is no room." in said
    assert "is complete. To write its graph alone: collab export" in said
    assert "--format openvino --precision float32" in said
    assert (tmp_path / "out" / "model.safetensors").is_file()


class TestCommand:
    def test_report(self, folder: Path) -> None:
        record = json.loads((folder / "record.json").read_text())
        assert record["precision"] == "int8"
        assert set(record["agreement_by_source"]) == {"text.txt", "synthetic"}
        assert record["agreement"]["rows"] == record["calibration"]["held_out"]
        files = {path.suffix for path in (folder / "served").iterdir()}
        assert {".xml", ".bin", ".json", ".md"} <= files
        assert ".onnx" not in files
        report = json.loads((folder / "served" / "collab_report.json").read_text())
        assert report["speed"] == record.pop("speed")
        assert report["history"] == [record]

    def test_speed(self, folder: Path) -> None:
        """Beside the same graph in float32."""
        speed = json.loads((folder / "record.json").read_text())["speed"]
        assert (speed["dtype"], speed["runtime"], speed["beside"]) == ("int8", "openvino", "model")
        assert speed["ratio"] > 0
        assert "the model in float32, both in openvino" in (folder / "served" / "README.md").read_text()

    @pytest.mark.exhaustive
    def test_that_int8_is_slower_is_said(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As it is where a processor lacks VNNI."""
        slow = Speed(0.8, 0.7, 0.9, 8, 128, "CPU", 1, "int8", "openvino", "model")
        module = sys.modules["collab.checkpoints.export"]  # the package has a function of this name
        monkeypatch.setattr(module, "measure_graph_speed", lambda *arguments: slow)
        command = ("export", folder / "model", tmp_path / "out", "--format", "openvino", "--precision", "int8")
        done = run(*command)
        assert "In int8 the graph is slower than in float32" in done.stderr
        assert "0.80 times as fast as the model in float32" in " ".join(done.stdout.split())

    @pytest.mark.exhaustive
    def test_card_runs_where_collab_is_not(self, folder: Path, tmp_path: Path) -> None:
        card = (folder / "served" / "README.md").read_text()
        code = card.partition("```python\n")[2].partition("```")[0].replace("FOLDER", str(folder / "served"))
        code = f"import sys; sys.modules['collab'] = None\n{code}\nprint(outputs[0].tolist())\n"
        done = run_without_collab(code, cache=tmp_path / "modules")
        assert done.returncode == 0, done.stderr
        assert np.array(json.loads(done.stdout)).shape == (2, 2)

    def test_evaluate(self, folder: Path) -> None:
        rows = ("--data", folder / "dev.tsv", "--task", "classification")
        done = run("evaluate", folder / "served", *rows, "--against", folder / "model", "--json")
        assert done.exit_code == 0, done.output
        result = json.loads(done.stdout)
        assert result["against"]["agreement"]["top1"] > (0.9 if has_vnni() else 0.8)
        assert (result["runtime"], result["dtype"]) == ("openvino", "int8")
        told = run("evaluate", folder / "served", *rows, "--against", folder / "model", "--draws", "10").stdout
        assert "in int8 by openvino" in " ".join(told.split())
        assert "same prediction" in " ".join(told.split())
        assert "cosine of hidden states" not in " ".join(told.split()), "which a graph does not give"
        wrong = run("evaluate", folder / "served", "--data", folder / "dev.tsv", "--task", "similarity")
        assert wrong.exit_code in (1, 2)
        assert "Traceback" not in wrong.output

    @pytest.mark.exhaustive
    def test_bench(self, folder: Path) -> None:
        sizes = ("--batch-size", "2", "--length", "8", "--rounds", "3")
        done = run("bench", folder / "served", "--against", folder / "model", "--runtime", "openvino", *sizes, "--json")
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        assert [model["attention"] for model in report["models"]] == ["openvino", "openvino"]
        assert [model["precision"] for model in report["models"]] == ["int8", "float32"]
        assert report["settings"][0]["ratio"]["median"] > 0
        done = run("bench", folder / "served", "--runtime", "onnxruntime", *sizes)
        assert done.exit_code == 2
        assert "a graph for openvino" in done.stderr

    def test_compress(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The speed is made up, because that of a tiny model says nothing."""
        times = iter([2.5, 2.9, 3.0])

        def speed(self: GraphTimer, graph: Path) -> Speed:
            assert graph.is_file()
            return Speed(3.0, 2.9, 3.1, self._rows, self._length, "cpu", 1, "int8", "openvino")

        monkeypatch.setattr(GraphTimer, "speed", speed)
        monkeypatch.setattr("collab.checkpoints.serving.GraphTimer.__call__", lambda self, model: next(times))
        done = run(
            *("compress", folder / "model", tmp_path / "small", "--speedup", "3", "--heal-steps", "0", "--rows", "2"),
            *("--length", "1000", "--runtime", "openvino", "--precision", "int8"),
            *("--calibration", folder / "text.txt"),
        )
        assert done.exit_code == 0, done.output
        report = json.loads((tmp_path / "small" / "collab_report.json").read_text())
        assert report["history"][0]["speedup"] == 3.0
        assert find_graph(str(tmp_path / "small-openvino")) is not None
        assert report["history"][0]["settings"]["length"] < 1000  # as many as the model takes
        assert "small-openvino" in done.stdout
        said = f"on 2 rows of {report['history'][0]['settings']['length']} tokens"
        served = json.loads((tmp_path / "small-openvino" / "collab_report.json").read_text())["speed"]
        assert (served["ratio"], served["rows"], served["runtime"]) == (3.0, 2, "openvino")
        assert said in done.stdout
        assert said in (tmp_path / "small-openvino" / "README.md").read_text()

    def test_speed_that_int8_has_alone(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("collab.checkpoints.serving.GraphTimer.__call__", lambda self, model: 3.1)
        monkeypatch.setattr("collab.checkpoints.serving.GraphTimer._write", lambda *arguments: Path())
        done = run(
            *("compress", folder / "model", tmp_path / "small", "--speedup", "3", "--heal-steps", "0"),
            *("--runtime", "openvino", "--precision", "int8"),
        )
        assert done.exit_code == 2
        assert "needs no compression" in done.stderr
        assert not list(tmp_path.iterdir())


class TestRefusals:
    def refused(self, message: str, *arguments: object) -> None:
        output = Path(str(arguments[1]))
        before = sorted(output.parent.rglob("*"))
        done = run("export", *arguments, "--format", "openvino")
        assert done.exit_code in (1, 2)
        assert message in " ".join(done.stderr.split()), done.output
        assert "Traceback" not in done.output
        assert sorted(output.parent.rglob("*")) == before

    def test_rows_of_another_kind(self, tmp_path: Path) -> None:
        tiny_model(BY_TYPE["vit"], ViTForImageClassification, num_hidden_layers=1).save_pretrained(tmp_path / "model")
        (tmp_path / "text.txt").write_text("\n".join(TEXT))
        where = (tmp_path / "model", tmp_path / "out", "--precision", "int8")
        self.refused("give images with --calibration", *where)
        self.refused("", *where, "--calibration", tmp_path / "text.txt")

    def test_no_rows(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "empty.txt").write_text("")
        where = (folder / "model", tmp_path / "out", "--precision", "int8")
        self.refused("no rows", *where, "--calibration", tmp_path / "empty.txt")

    def test_without_the_extra(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "nncf", None)
        self.refused("nncf: pip install 'collab[openvino]'", folder / "model", tmp_path / "out")

    def test_output_is_there(self, folder: Path) -> None:
        self.refused("--overwrite", folder / "model", folder / "served")

    @pytest.mark.parametrize("options", [("--int8", "--precision", "float32"), ("--precision", "int4")])
    def test_options(self, folder: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
        self.refused("int", folder / "model", tmp_path / "out", *options)

    @pytest.mark.parametrize("command", ["bench", "evaluate"])
    @pytest.mark.parametrize(
        ("name", "content", "reason"),
        [
            ("openvino_model.xml", b"", "Unable to read the model"),
            ("openvino_model.xml", b"<net></net>", "Unable to read the model"),
            ("openvino_model.bin", b"\0" * 2000, "Incorrect weights"),
        ],
        ids=["empty", "strange", "weights cut off"],
    )
    def test_damaged(self, command: str, name: str, content: bytes, reason: str, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "served").mkdir()
        for path in (folder / "served").iterdir():
            if path.is_file():
                (tmp_path / "served" / path.name).write_bytes(path.read_bytes())
        (tmp_path / "served" / name).write_bytes(content)
        data = ("--data", folder / "dev.tsv", "--task", "classification") if command == "evaluate" else ()
        done = run(command, tmp_path / "served", *data)
        assert done.exit_code == 1
        assert reason in done.stderr
        assert "Export the model again" in done.stderr
        assert "Traceback" not in done.output
