"""Checkpoints that earlier versions wrote: they load three ways, and everything that is done to a checkpoint still is.

`exported/bert-cp-0.1.0` is older than the others; `exported/bert-cp-0.1.0.json` holds what its model computed for two
texts. The others have one checkpoint for every kind of step, made by `exported/make.py`.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from processes import run
from reload import errors_without_trust, outputs_without_collab
from tiny import often
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification

import collab
from collab.io.read import read_json

FOLDER = Path(__file__).parent / "exported" / "bert-cp-0.1.0"
EXPORTED = Path(__file__).parent / "exported" / "0.1.0-a398ff0"
RECORDED = json.loads((EXPORTED / "outputs.json").read_text())
ORIGINALS = ("classifier", "embedder", "language-model")
NATIVE = ("finetuned-original", "expanded")
CONVERTED = [name for name in RECORDED["checkpoints"] if name not in (*ORIGINALS, *NATIVE)]
EMBEDDERS = [name for name in CONVERTED if (EXPORTED / name / "modules.json").exists()]
EMBEDDINGS = "embeddings"
every_checkpoint = pytest.mark.parametrize("name", [*CONVERTED, *NATIVE])
every_converted = pytest.mark.parametrize("name", CONVERTED)
some_converted = pytest.mark.parametrize("name", often(CONVERTED, {*CONVERTED[::3], "compressed", "finetuned"}))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints as they were written: the code, which they have in common, is kept once."""
    folder = tmp_path_factory.mktemp("exported") / "all"
    shutil.copytree(EXPORTED, folder)
    for manifest in folder.glob("*/collab_files.txt"):
        for name in manifest.read_text().split():
            if (folder / "code" / name).is_file():
                shutil.copyfile(folder / "code" / name, manifest.parent / name)
    return folder


@pytest.fixture
def here(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which their reports name one another."""
    monkeypatch.chdir(exported)
    return exported


def inputs_of(folder: Path) -> dict[str, Tensor]:
    batch = AutoTokenizer.from_pretrained(folder)(RECORDED["texts"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == RECORDED["checkpoints"][folder.name]["input_ids"]
    return dict(batch)


@pytest.fixture(scope="module")
def without_collab(
    exported: Path, inputs: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory
) -> dict[Path, dict[str, Tensor]]:
    """The outputs of every checkpoint by its own code, by folder; sentence embeddings by a name inside the folder."""
    jobs: dict[Path, dict[str, Any]] = {
        FOLDER: {"folder": FOLDER, "auto_class": "AutoModelForSequenceClassification", "inputs": inputs}
    }
    for name in (*CONVERTED, *NATIVE):
        folder, auto_class = exported / name, RECORDED["checkpoints"][name]["auto_class"]
        trust = name in CONVERTED
        jobs[folder] = {
            "folder": folder,
            "auto_class": auto_class,
            "inputs": inputs_of(folder),
            "trust_remote_code": trust,
        }
    if importlib.util.find_spec("sentence_transformers"):
        for name in EMBEDDERS:
            folder = exported / name
            job = {"folder": folder, "auto_class": "SentenceTransformer", "sentences": RECORDED["texts"]}
            jobs[folder / EMBEDDINGS] = job
    results = outputs_without_collab(list(jobs.values()), tmp_path_factory.mktemp("without"))
    return dict(zip(jobs, results, strict=True))


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(FOLDER.with_name(f"{FOLDER.name}.json").read_text())


@pytest.fixture(scope="module")
def inputs(recorded: dict[str, Any]) -> dict[str, Tensor]:
    batch = AutoTokenizer.from_pretrained(FOLDER)(recorded["texts"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == recorded["input_ids"]
    return dict(batch)


def check(logits: Tensor, recorded: dict[str, Any]) -> None:
    torch.testing.assert_close(logits, torch.tensor(recorded["logits"]), rtol=0, atol=1e-5)


class TestLoads:
    def test_with_collab(self, inputs: dict[str, Tensor], recorded: dict[str, Any]) -> None:
        model = AutoModelForSequenceClassification.from_pretrained(FOLDER)
        assert type(model).__module__ == "collab.modeling.collab_bert"
        with torch.no_grad():
            outputs = model(**inputs, output_hidden_states=True)
        check(outputs.logits, recorded)
        first_tokens = outputs.hidden_states[-1][:, 0]
        torch.testing.assert_close(first_tokens, torch.tensor(recorded["last_hidden_state"]), rtol=0, atol=1e-5)

    @pytest.mark.slow
    def test_by_its_own_code(self, recorded: dict[str, Any], without_collab: dict[Path, dict[str, Tensor]]) -> None:
        check(without_collab[FOLDER]["logits"], recorded)


class TestReport:
    def test_is_inspected(self) -> None:
        inspection = collab.checkpoints.inspect(str(FOLDER))
        assert [(layer.form, layer.rank) for layer in inspection.layers] == [("cp", 6)] * 2
        report = read_json(FOLDER / "collab_report.json")
        assert inspection.parameters["model"] == report["parameters"]["model"]["after"]
        assert inspection.parameters["attention"] == report["parameters"]["attention"]["after"]

    def test_goes_along_where_the_model_is_expanded(self, tmp_path: Path) -> None:
        expansion = collab.checkpoints.expand(str(FOLDER), tmp_path / "native", allow_error=0.9)
        assert type(expansion.model) is BertForSequenceClassification
        before, after = (read_json(folder / "collab_report.json") for folder in (FOLDER, tmp_path / "native"))
        history = after.pop("history")
        assert before.pop("history") == []
        assert after == before
        assert [step["step"] for step in history] == ["expand"]
        assert "collab convert original bert-cp-0.1.0 --rank 6" in (tmp_path / "native" / "README.md").read_text()

    def test_is_pruned_and_grows(self, tmp_path: Path) -> None:
        options = collab.PruneOptions(keep={0: [1]})
        collab.checkpoints.prune(str(FOLDER), tmp_path / "pruned", options)
        history = read_json(tmp_path / "pruned" / "collab_report.json")["history"]
        assert [step["step"] for step in history] == ["prune"]


def check_outputs(name: str, outputs: dict[str, Tensor]) -> None:
    recorded = RECORDED["checkpoints"][name]
    computed = outputs[recorded["output"]]
    computed = computed[:, :2].flatten(1) if computed.ndim == 3 else computed
    torch.testing.assert_close(computed, torch.tensor(recorded["values"]), rtol=0, atol=1e-5)


def load(folder: Path) -> Any:
    return getattr(transformers, RECORDED["checkpoints"][folder.name]["auto_class"]).from_pretrained(folder)


class TestEveryStepLoads:
    @every_checkpoint
    def test_with_collab(self, name: str, exported: Path) -> None:
        model = load(exported / name)
        assert type(model).__module__.startswith("collab." if name in CONVERTED else "transformers.")
        with torch.no_grad():
            check_outputs(name, model(**inputs_of(exported / name)))

    @every_checkpoint
    def test_by_its_own_code(self, name: str, exported: Path, without_collab: dict[Path, dict[str, Tensor]]) -> None:
        check_outputs(name, without_collab[exported / name])

    @pytest.mark.parametrize("name", EMBEDDERS)
    def test_by_sentence_transformers(
        self, name: str, exported: Path, without_collab: dict[Path, dict[str, Tensor]]
    ) -> None:
        if exported / name / EMBEDDINGS not in without_collab:
            pytest.skip("the demo extra is not installed")
        mask = inputs_of(exported / name)["attention_mask"][..., None]
        states = without_collab[exported / name]["last_hidden_state"]
        embeddings = without_collab[exported / name / EMBEDDINGS]["embeddings"]
        torch.testing.assert_close(embeddings, (states * mask).sum(1) / mask.sum(1), rtol=0, atol=1e-5)

    def test_with_neither_they_name_the_cure(self, exported: Path, tmp_path: Path) -> None:
        folders = [FOLDER, *(exported / name for name in CONVERTED)]
        for message in errors_without_trust(folders, cache=tmp_path / "modules"):
            assert "trust_remote_code=True" in message


def read_report(folder: Path) -> dict[str, Any]:
    return read_json(folder / "collab_report.json")


def metrics_in(folder: Path) -> dict[str, float]:
    """The results in a card's metadata."""
    index = ModelCard.load(folder / "README.md").data.to_dict()["model-index"]
    return {result.metric_type: result.metric_value for result in model_index_to_eval_results(index)[1]}


def sections(folder: Path) -> list[str]:
    """What comes before the first heading of a card, its metadata left out, and the section below each."""
    _, _, text = (folder / "README.md").read_text().rpartition("---\n\n# ")
    return [section.strip() for section in text.split("\n## ")]


def data_of(name: str) -> tuple[str, str]:
    """The option with labelled rows that go with a checkpoint."""
    if name in EMBEDDERS:
        return "--data", "pairs.tsv"
    return "--data", "text.txt" if name == "converted-tucker" else "rows.tsv"


def check_goes_along(before: Path, after: Path, *steps: str) -> None:
    """Checks that a report is what it was but for the steps after it, and that the card has all earlier sections."""
    first, second = read_report(before), read_report(after)
    earlier, history = first.pop("history"), second.pop("history")
    assert second == first
    assert history[: len(earlier)] == earlier
    assert [step["step"] for step in history[len(earlier) :]] == list(steps)
    kept = sections(before)
    assert sections(after)[: len(kept)] == kept
    assert len(sections(after)) == len(kept) + len(steps)


class TestEveryStepGoesOn:
    @every_checkpoint
    def test_is_inspected(self, name: str, here: Path) -> None:
        inspection = json.loads(run("inspect", name, "--json", "-q").stdout)
        recorded = RECORDED["checkpoints"][name]
        assert [{key: layer[key] for key in recorded["layers"][0]} for layer in inspection["layers"]] == recorded[
            "layers"
        ]
        assert inspection["parameters"] == recorded["parameters"]

    @some_converted
    def test_is_healed(self, name: str, here: Path, tmp_path: Path) -> None:
        """With the teacher that the report names, where that fits; else with another."""
        tuned = name in ("finetuned", "evaluated")
        line = ["heal", name, tmp_path / "out", "--data", "text.txt", "--steps", "2", "--batch-size", "8"]
        line += ["--evaluations", "1"]
        if tuned or name == "converted-fewer-tokens":
            refused = run(*line)
            assert refused.exit_code == 2
            assert ("was fine-tuned after its conversion" if tuned else "different tokenizers") in refused.stderr
            line += ["--teacher", "finetuned-original" if tuned else name]
        done = run(*line)
        assert done.exit_code == 0, done.output
        check_goes_along(here / name, tmp_path / "out", "heal")

    @every_checkpoint
    def test_is_pruned(self, name: str, here: Path, tmp_path: Path) -> None:
        done = run("prune", name, tmp_path / "out", "--per-layer", "1", "--data", "text.txt", "--no-speed")
        assert done.exit_code == 0, done.output
        if name in CONVERTED:
            check_goes_along(here / name, tmp_path / "out", "prune")
        else:  # a conversion, with a report of its own
            after = read_report(tmp_path / "out")
            assert after["original_history"] == read_report(here / name)["history"]
            assert [step["step"] for step in after["history"]] == ["prune"]

    @some_converted
    def test_is_expanded(self, name: str, here: Path, tmp_path: Path) -> None:
        done = run("expand", name, tmp_path / "out", "--allow-error", "0.9")
        assert done.exit_code == 0, done.output
        first, second = read_report(here / name), read_report(tmp_path / "out")
        earlier, history = first.pop("history"), second.pop("history")
        assert second == first
        assert history[:-1] == earlier
        assert history[-1]["step"] == "expand"
        card = (tmp_path / "out" / "README.md").read_text()  # a new one, with the commands of the earlier steps
        commands = [first["command"], *(step.get("command", step["step"]) for step in earlier)]
        assert all(command in card for command in commands if command)

    @every_checkpoint
    def test_is_evaluated(self, name: str, here: Path, tmp_path: Path) -> None:
        shutil.copytree(here / name, tmp_path / "out")
        done = run("evaluate", tmp_path / "out", *data_of(name), "--draws", "10", "--record")
        assert done.exit_code == 0, done.output
        check_goes_along(here / name, tmp_path / "out", "evaluate")
        assert metrics_in(tmp_path / "out")

    @some_converted
    def test_is_replaced_as_what_collab_wrote(self, name: str, here: Path, tmp_path: Path) -> None:
        shutil.copytree(here / name, tmp_path / "out")
        line = ("convert", "classifier", tmp_path / "out", "--rank", "8", "--calibration", "none", "--no-speed")
        done = run(*line, "--overwrite")
        assert done.exit_code == 0, done.output
        assert read_report(tmp_path / "out")["settings"]["rank"] == 8

    @pytest.mark.parametrize("name", NATIVE)
    def test_a_native_one_is_converted(self, name: str, here: Path, tmp_path: Path) -> None:
        line = ("convert", name, tmp_path / "converted", "--rank", "8", "--calibration", "text.txt", "--refine", "2")
        done = run(*line, "--no-speed")
        assert done.exit_code == 0, done.output
        assert read_report(tmp_path / "converted")["original_history"] == read_report(here / name)["history"]

    @pytest.mark.parametrize("name", ["pruned", "finetuned-original"])
    def test_is_finetuned(self, name: str, here: Path, tmp_path: Path) -> None:
        line = ["finetune", name, tmp_path / "out", "--task", "classification", "--train", "rows.tsv", "--eval"]
        done = run(*line, "rows.tsv", "--steps", "2", "--batch-size", "8", "--evaluations", "1")
        assert done.exit_code == 0, done.output
        check_goes_along(here / name, tmp_path / "out", "finetune")

    @pytest.mark.exhaustive
    def test_is_exported(self, here: Path, tmp_path: Path) -> None:
        for extra in ("onnx", "onnxruntime", "onnxscript"):
            pytest.importorskip(extra, reason="the onnx extra is not installed")
        done = run("export", "pruned", tmp_path / "out", "--format", "onnx")
        assert done.exit_code == 0, done.output
        assert read_report(tmp_path / "out")["history"][:-1] == read_report(here / "pruned")["history"]

    def test_recorded_metrics_are_read(self) -> None:
        recorded = read_report(EXPORTED / "evaluated")["history"][-1]["metrics"]
        assert metrics_in(EXPORTED / "evaluated") == {
            name: pytest.approx(metric["value"], abs=1e-6) for name, metric in recorded.items()
        }

    def test_the_report_beside_a_graph_is_read(self) -> None:
        shown = run("inspect", EXPORTED / "graph")
        assert "It was made from" in shown.output
        assert "healed" in shown.output
        assert "exported" in shown.output
