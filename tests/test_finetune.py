"""Fine-tuning and evaluation: every task, resuming, several processes, metrics against their definitions, bad input."""

from __future__ import annotations

import csv
import errno
import itertools
import json
import os
import random
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import command, kill_midway, run
from tiny import BERT, LETTERS, WORDS, often, save_with_tokenizer, tiny_model
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

import collab
from collab.io.card import results_of
from collab.io.history import record
from collab.io.read import read_json

for extra in ("accelerate", "scipy"):
    pytest.importorskip(extra, reason="the train extra is not installed")
sklearn_metrics = pytest.importorskip("sklearn.metrics", reason="the dev extra is not installed")

from collab import LabelledData, MidwayPruning
from collab.data import batches
from collab.data.encoding import mask_batch
from collab.data.examples import class_numbers, label_names
from collab.data.features import text_features
from collab.evaluation.compare import compare
from collab.evaluation.embedding import Embedder
from collab.evaluation.metrics import intervals, measure
from collab.models.layers import attention_layers
from collab.training.sampling import LengthSampler

CLASSIFICATION = collab.task_named("classification")
RUN = collab.RunOptions(learning_rate=5e-3, batch_size=16, steps=60, evaluations=3, device="cpu")
OPTIONS = collab.FinetuneOptions(dropout=0.0, run=RUN)
FAST = ("--steps", "40", "--batch-size", "16", "--evaluations", "4", "--learning-rate", "5e-3", "--device", "cpu")


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Words of letters; the label says whether there is an ``a``."""
    generator = random.Random(seed)
    table = []
    for number in range(count):
        words = [generator.choice(LETTERS[1:]) for _ in range(generator.randint(2, 8))]
        if number % 2:
            words[generator.randrange(len(words))] = "a"
        tags = ["B-A" if word == "a" else "O" for word in words]
        table.append(
            {"sentence": " ".join(words), "other": words[0], "label": number % 2, "tokens": words, "tags": tags}
        )
    return table


def write(path: Path, table: list[dict[str, Any]], columns: list[str]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps({name: row[name] for name in columns}) for row in table))
        return path
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows({name: row[name] for name in columns} for row in table)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A converted tiny model with its tokenizer."""
    original = save_with_tokenizer(tiny_model(BERT), tmp_path / "original")
    collab.checkpoints.convert(
        str(original), tmp_path / "converted", collab.ConversionConfig(rank=16, refine="none", compare=False)
    )
    for name, seed in (("train", 1), ("dev", 2)):
        write(tmp_path / f"{name}.tsv", rows(128, seed), ["sentence", "label"])
    return tmp_path / "converted"


def data(folder: Path, suffix: str = ".tsv", **more: Any) -> LabelledData:
    train, dev = (collab.DataSource(str(folder.parent / f"{name}{suffix}")) for name in ("train", "dev"))
    return LabelledData(train, dev, **more)


def finetune(
    model: Path, output: Path, given: LabelledData, task: collab.Task = CLASSIFICATION, **settings: Any
) -> dict[str, Any]:
    """Fine-tunes, and gives the record of it."""
    settings.setdefault("options", OPTIONS)
    return collab.checkpoints.finetune(str(model), output, task, given, **settings).report.to_dict()


class TestTasks:
    @pytest.mark.parametrize("which", ["original", "converted"])
    def test_classification(self, folder: Path, tmp_path: Path, which: str) -> None:
        output = tmp_path / "tuned"
        record = finetune(folder.parent / which, output, data(folder))
        assert record["metrics"]["accuracy"]["value"] > 0.9 > record["before"]["accuracy"]
        assert record["labels"] == ["LABEL_0", "LABEL_1"]
        kind = "CollabBertForSequenceClassification" if which == "converted" else "BertForSequenceClassification"
        assert type(AutoModelForSequenceClassification.from_pretrained(output)).__name__ == kind
        steps = [step["step"] for step in read_json(output / "collab_report.json")["history"]]
        assert steps == ["finetune"]
        values = {result.metric_type: result.metric_value for result in results_of(output)}
        assert values["accuracy"] == pytest.approx(record["metrics"]["accuracy"]["value"])
        measured = collab.checkpoints.evaluate(str(output), collab.DataSource(str(tmp_path / "dev.tsv")))
        assert measured.report.metrics == record["metrics"], "evaluate finds what training found"

    @pytest.mark.slow
    def test_heals_what_was_trained_before_its_conversion(self, folder: Path, tmp_path: Path) -> None:
        short = replace(OPTIONS, run=replace(RUN, steps=2, evaluations=1))
        healing = ("--data", tmp_path / "dev.tsv", "--text-column", "sentence", "--steps", 2, "--samples", 16)
        finetune(folder.parent / "original", tmp_path / "tuned", data(folder), options=short)
        collab.checkpoints.convert(
            str(tmp_path / "tuned"), tmp_path / "smaller", collab.ConversionConfig(rank=8, refine="none", compare=False)
        )
        done = run("heal", tmp_path / "smaller", tmp_path / "healed", *healing)
        assert done.exit_code == 0, done.stderr
        assert f"Next: collab export {tmp_path / 'healed'} served" in " ".join(done.stdout.split())
        report = read_json(tmp_path / "healed" / "collab_report.json")
        assert [step["step"] for step in report["original_history"]] == ["finetune"]
        assert [step["step"] for step in report["history"]] == ["heal"]
        inspected = " ".join(run("inspect", tmp_path / "healed").stdout.split())
        assert inspected.index("Its original was fine-tuned before.") < inspected.index("converted and then healed.")
        finetune(tmp_path / "smaller", tmp_path / "again", data(folder), options=short)
        refused = run("heal", tmp_path / "again", tmp_path / "never", *healing)
        assert refused.exit_code == 2
        assert "fine-tuned after its conversion" in refused.stderr

    def test_labels_by_name_and_pairs(self, folder: Path, tmp_path: Path) -> None:
        for name, seed in (("train", 1), ("dev", 2)):
            table = [row | {"label": ["no", "yes"][row["label"]]} for row in rows(64, seed)]
            write(tmp_path / f"{name}.csv", table, ["other", "sentence", "label"])
        columns = ("other", "sentence")
        train, dev = (collab.DataSource(str(tmp_path / f"{name}.csv"), columns) for name in ("train", "dev"))
        task = collab.task_named("classification", "f1")
        short = replace(OPTIONS, run=replace(RUN, steps=4, evaluations=1))
        record = finetune(folder, tmp_path / "tuned", LabelledData(train, dev), task, options=short)
        assert record["labels"] == ["no", "yes"]
        assert record["best_by"] == "f1"
        config = read_json(tmp_path / "tuned" / "config.json")
        assert config["label2id"] == {"no": 0, "yes": 1}

    @pytest.mark.slow
    def test_regression(self, folder: Path, tmp_path: Path) -> None:
        for name, seed in (("train", 1), ("dev", 2)):
            table = [row | {"score": row["label"] * 2.5} for row in rows(128, seed)]
            write(tmp_path / f"{name}.csv", table, ["sentence", "score"])
        record = finetune(folder, tmp_path / "tuned", data(folder, ".csv"), collab.task_named("regression"))
        assert record["metrics"]["pearson"]["value"] > 0.8
        assert read_json(tmp_path / "tuned" / "config.json")["problem_type"] == "regression"

    def test_token_classification(self, folder: Path, tmp_path: Path) -> None:
        pytest.importorskip("seqeval", reason="the train extra is not installed")
        for name, seed in (("train", 1), ("dev", 2)):
            write(tmp_path / f"{name}.jsonl", rows(128, seed), ["tokens", "tags"])
        task = collab.task_named("token-classification")
        record = finetune(folder, tmp_path / "tuned", data(folder, ".jsonl"), task)
        assert record["labels"] == ["B-A", "O"]
        assert record["metrics"]["f1"]["value"] > 0.9

    def test_masked_lm(self, folder: Path, tmp_path: Path) -> None:
        for name, seed in (("train", 1), ("dev", 2)):
            (tmp_path / f"{name}.txt").write_text("\n\n".join(row["sentence"] for row in rows(64, seed)))
        record = finetune(folder, tmp_path / "tuned", data(folder, ".txt"), collab.task_named("masked-lm"))
        assert record["metrics"]["loss"]["value"] < record["before"]["loss"]
        assert record["data"]["rows"] == 64, "empty lines do not count"
        assert "(64 rows, 15 % of their tokens masked)" in (tmp_path / "tuned" / "README.md").read_text()

    @pytest.mark.slow
    def test_distillation(self, folder: Path, tmp_path: Path) -> None:
        finetune(tmp_path / "original", tmp_path / "teacher", data(folder))
        options = replace(OPTIONS, distill=1.0)  # labels do not count at all
        teacher = str(tmp_path / "teacher")
        record = finetune(folder, tmp_path / "tuned", data(folder), options=options, teacher=teacher)
        assert record["metrics"]["accuracy"]["value"] > 0.8 > record["before"]["accuracy"]

    @pytest.mark.slow
    def test_gradient_accumulation_gives_the_same_result(self, folder: Path, tmp_path: Path) -> None:
        states = []
        for pieces in (1, 4):
            settings = replace(RUN, steps=10, evaluations=1, gradient_accumulation_steps=pieces)
            settings = replace(settings, gradient_checkpointing=pieces == 4)
            output = tmp_path / f"tuned{pieces}"
            finetune(folder, output, data(folder), options=replace(OPTIONS, run=settings))
            states.append(AutoModelForSequenceClassification.from_pretrained(output).state_dict())
        assert all(torch.allclose(states[0][name], states[1][name], atol=1e-4) for name in states[0])

    def test_bfloat16(self, folder: Path, tmp_path: Path) -> None:
        settings = replace(RUN, steps=10, evaluations=1, precision="bfloat16")
        finetune(folder, tmp_path / "tuned", data(folder), options=replace(OPTIONS, run=settings))
        assert AutoModel.from_pretrained(tmp_path / "tuned").dtype == torch.float32


class TestRuns:
    def arguments(self, folder: Path, output: Path) -> list[object]:
        files = ("--train", folder.parent / "train.tsv", "--eval", folder.parent / "dev.tsv")
        return ["finetune", folder, output, "--task", "classification", *files, *FAST, "--json"]

    @pytest.mark.exhaustive
    def test_killed_and_resumed(self, folder: Path, tmp_path: Path) -> None:
        """With dropout, so that the states of the random generators matter."""
        more = ("--steps", "100", "--evaluations", "10")
        whole = run(*self.arguments(folder, tmp_path / "whole"), *more)
        assert whole.exit_code == 0, whole.stderr
        work = tmp_path / "killed.training"
        checkpoint = kill_midway(command(*self.arguments(folder, tmp_path / "killed"), *more), work)
        assert not (tmp_path / "killed").exists()
        assert list(checkpoint.glob("collab_*.py")), "a checkpoint travels with its code"
        resumed = run(*self.arguments(folder, tmp_path / "killed"), *more)
        assert resumed.exit_code == 0, resumed.stderr
        assert "Resuming from" in resumed.stderr
        first, second = (json.loads(done.stdout) for done in (whole, resumed))
        assert first["metrics"] == second["metrics"]
        assert first["evaluations"] == second["evaluations"]
        states = [
            AutoModelForSequenceClassification.from_pretrained(tmp_path / name).state_dict()
            for name in ("whole", "killed")
        ]
        assert all(torch.allclose(states[0][name], states[1][name], atol=1e-6) for name in states[0])

    @pytest.mark.slow
    @pytest.mark.parametrize("patience", often([None, 1], {"1"}))
    def test_interrupted_before_it_is_written(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int | None
    ) -> None:
        """All steps are done, or patience is at its end: the next call trains no further."""
        options = replace(OPTIONS, run=replace(RUN, steps=30, evaluations=5, patience=patience))
        whole = finetune(folder, tmp_path / "whole", data(folder), options=options)

        def interrupt(*arguments: object, **named: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("collab.checkpoints.transform.save", interrupt)
            with pytest.raises(KeyboardInterrupt):
                finetune(folder, tmp_path / "late", data(folder), options=options)
        again = finetune(folder, tmp_path / "late", data(folder), options=options)
        for name in ("metrics", "best_step", "steps", "evaluations"):
            assert again[name] == whole[name]
        configs = [read_json(tmp_path / name / "config.json") for name in ("whole", "late")]
        assert configs[0] == configs[1]
        assert "use_cache" not in set(configs[0]) - set(read_json(folder / "config.json"))

    @pytest.mark.exhaustive
    def test_two_processes_equal_one(self, folder: Path, tmp_path: Path) -> None:
        more = ("--dropout", "0")
        done = run(*self.arguments(folder, tmp_path / "one"), *more)
        assert done.exit_code == 0, done.stderr
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
        launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(port)]
        launcher += ["-m", "collab", *map(str, self.arguments(folder, tmp_path / "two")), *more]
        two = subprocess.run(
            [sys.executable, "-m", *launcher],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert two.returncode == 0, two.stderr
        first, second = json.loads(done.stdout), json.loads(two.stdout)
        assert first["steps"] == second["steps"] == 40
        states = [
            AutoModelForSequenceClassification.from_pretrained(tmp_path / name).state_dict() for name in ("one", "two")
        ]
        assert all(torch.allclose(states[0][name], states[1][name], atol=1e-4) for name in states[0])
        assert not (tmp_path / "two.training").exists()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # datasets, of a file not read to its end
class TestPruningOnTheWay:
    """`--prune-heads`: train, prune the best so far, train on."""

    @staticmethod
    def pruning(**more: Any) -> MidwayPruning:
        return MidwayPruning(collab.PruneOptions(heads=0.5, rows=collab.RowOptions(samples=32)), **more)

    @pytest.mark.slow
    def test_prunes_and_goes_on(self, folder: Path, tmp_path: Path) -> None:
        output = tmp_path / "tuned"
        arguments = ["--train", tmp_path / "train.tsv", "--eval", tmp_path / "dev.tsv", "--learning-rate", "5e-3"]
        arguments += ["--task", "classification", "--epochs", 12, "--batch-size", 16, "--dropout", 0, "--json"]
        arguments += ["--prune-heads", 0.5, "--prune-at", 0.7]
        done = run("finetune", folder.parent / "original", output, *arguments)
        assert done.exit_code == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["metrics"]["accuracy"]["value"] > 0.9
        report = read_json(output / "collab_report.json")
        assert report["source"] == str(folder.parent / "original")
        assert (output / "README.md").read_text().count("whole") == 0
        pruned, _ = report["history"]
        assert [step["step"] for step in report["original_history"] + report["history"]] == [
            "finetune",
            "prune",
            "finetune",
        ]
        assert pruned["heads_after"] == pruned["heads_before"] / 2
        model = AutoModelForSequenceClassification.from_pretrained(output)
        assert sum(len(layer.heads) for layer in attention_layers(model)) == pruned["heads_after"]
        assert {path.name for path in tmp_path.iterdir() if "tuned" in path.name} == {"tuned"}

    @pytest.mark.slow
    @pytest.mark.parametrize("reached", often([1, 2], {"2"}))
    def test_interrupted_and_resumed(self, folder: Path, tmp_path: Path, reached: int) -> None:
        output, seen = tmp_path / "tuned", []

        def interrupt(what: str, done: int, total: int | None) -> None:
            if not what.startswith("training"):
                return
            seen.append(done)
            if done == 2 and seen.count(2) == reached:  # of the first part, or of the second
                raise KeyboardInterrupt

        tune = partial(
            collab.checkpoints.finetune, str(folder), task=CLASSIFICATION, data=data(folder), options=OPTIONS
        )
        (folder / ".cache").mkdir()  # as the Hub's library leaves it
        other_run = tmp_path / "tuned.training"
        other_run.mkdir()
        (other_run / "run.json").write_text("{}")
        with pytest.raises(collab.errors.TrainingError, match=r"tuned\.training holds another run"):
            tune(output, pruning=self.pruning(), progress=interrupt)
        assert not seen, "it is refused before anything is trained"
        assert not (tmp_path / "tuned.pruning").exists()
        (other_run / "run.json").unlink()
        with pytest.raises(KeyboardInterrupt):
            tune(output, pruning=self.pruning(), progress=interrupt)
        assert not output.exists()
        other = MidwayPruning(collab.PruneOptions(heads=0.25, rows=collab.RowOptions(samples=32)))
        with pytest.raises(collab.errors.TrainingError, match="--restart"):
            tune(output, pruning=other)
        train = folder.parent / "train.tsv"
        rows = train.read_text()
        train.write_text(rows.replace("\t1", "\t0", 1))
        with pytest.raises(collab.errors.TrainingError, match="other data"):
            tune(output, pruning=self.pruning())
        train.write_text(rows)
        resumed = tune(output, pruning=self.pruning())
        whole = tune(tmp_path / "again", pruning=self.pruning())
        assert resumed.report.metrics == whole.report.metrics

    @pytest.mark.parametrize("at", [0, 1, -0.5, float("nan")])
    def test_bad_moments(self, at: float) -> None:
        with pytest.raises(collab.errors.ConfigurationError, match="between 0 and 1"):
            self.pruning(at=at)

    def test_no_step_left(self) -> None:
        with pytest.raises(collab.errors.ConfigurationError, match="no step"):
            self.pruning(at=0.1).halves(collab.RunOptions(learning_rate=1e-3, steps=3))


class TestEvaluate:
    def test_a_single_row(self, folder: Path, tmp_path: Path) -> None:
        """It has no interval, and nothing fails when all is done."""
        write(tmp_path / "one.tsv", rows(1, 3), ["sentence", "label"])
        one = collab.DataSource(str(tmp_path / "one.tsv"))
        short = replace(OPTIONS, run=replace(RUN, steps=2, evaluations=1))
        finetune(folder, tmp_path / "tuned", replace(data(folder), held_out=one), options=short)
        assert "| none |" in (tmp_path / "tuned" / "README.md").read_text()

    def test_a_record_that_cannot_be_written(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step = collab.convert(tiny_model(BERT), collab.ConversionConfig(rank=8, compare=False)).report
        before = (folder / "README.md").read_text()
        replaced = Path.replace

        def full(self: Path, target: Path) -> Path:
            if target.name == "collab_report.json":
                raise OSError(errno.ENOSPC, "No space left on device")
            return replaced(self, target)

        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(collab.errors.OutputError, match="Report and card are as they were"):
            record(folder, step, name="model")
        assert (folder / "README.md").read_text() == before

    def test_long_rows_against_an_original_that_takes_shorter_ones(self, original: Path, tmp_path: Path) -> None:
        options = collab.LongOptions(max_length=80, positions="copy", block=8, dense_below=16)
        collab.checkpoints.lengthen(str(original), tmp_path / "long", options)
        table = [{"sentence": " ".join(LETTERS[number:] * 4), "label": number % 2} for number in range(6)]
        write(tmp_path / "rows.csv", table, ["sentence", "label"])
        source = collab.DataSource(str(tmp_path / "rows.csv"))
        evaluation = collab.checkpoints.evaluate(
            str(tmp_path / "long"), source, collab.task_named("classification"), against=str(original)
        )
        assert evaluation.report.against["agreement"]["rows"] == 6

    def test_against_the_original(self, folder: Path, tmp_path: Path) -> None:
        table = [row | {"score": row["label"]} for row in rows(40, 3)]
        write(tmp_path / "pairs.csv", table, ["sentence", "other", "score"])
        arguments = ["--data", tmp_path / "pairs.csv", "--task", "similarity", "--text-column", "sentence"]
        arguments += ["--text-column", "other", "--against", tmp_path / "original", "--draws", 50]
        done = run("evaluate", folder, *arguments, "--json", "--record")
        assert done.exit_code == 0, done.stderr
        report = json.loads(done.stdout)
        against = report["against"]
        for name, metric in report["metrics"].items():
            assert metric["low"] <= metric["value"] <= metric["high"]
            difference = against["difference"][name]["value"]
            assert difference == pytest.approx(metric["value"] - against["metrics"][name]["value"])
        assert len(against["hidden_cosine"]) == 2
        assert 0 < against["hidden_cosine"][-1] < 1
        assert against["parameters"]["model"] < against["parameters"]["against"]
        assert against["tokens_per_second"]["ratio"] > 0
        assert against["agreement"]["rows"] == 40
        assert "## Evaluation" in (folder / "README.md").read_text()
        assert read_json(folder / "collab_report.json")["history"][0]["step"] == "evaluate"
        assert run("evaluate", folder, *arguments).stdout.count("spearman") == 1

    def test_models_in_training_mode(self, folder: Path) -> None:
        """Nothing is dropped, and they stay in it."""
        texts = [(row["sentence"], row["other"]) for row in rows(20, 3)]
        model = collab.load(str(folder))
        model.model.train()
        assert Embedder(model).similarities([(first, first) for first, _ in texts]) == pytest.approx(1, abs=1e-5)
        compared = compare(model, model, text_features(model.model, model.tokenizer, texts))
        assert compared["hidden_cosine"] == pytest.approx([1.0] * len(compared["hidden_cosine"]), abs=1e-5)
        assert model.model.training

    @pytest.mark.parametrize("native_class", [AutoModel, AutoModelForMaskedLM])
    def test_passes_are_small_where_the_vocabulary_or_rows_are_large(
        self, native_class: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Logits of 4,096 tokens would take gigabytes, and so would the states of 64 rows of any length."""
        monkeypatch.setattr(batches, "_TOKENS_OF_PASS", 90)
        monkeypatch.setattr(batches, "_LOGITS", 60 * len(WORDS))
        texts = [" ".join(LETTERS[:count]) for count in (3, 20, 8, 20, 1, 20, 13, 5, 20)]
        native = native_class.from_config(tiny_model(BERT, vocab_size=len(WORDS)).config)
        model = collab.Checkpoint(native.eval(), AutoTokenizer.from_pretrained(folder))
        shapes = []
        embeddings = native.base_model.embeddings
        embeddings.register_forward_hook(lambda module, inputs, states: shapes.append(len(states.flatten(0, 1))))
        together = Embedder(model).embed(texts)
        assert sum(shapes) >= 128
        assert max(shapes) <= (90 if native_class is AutoModel else 60)
        alone = np.concatenate([Embedder(model).embed([text]) for text in texts])
        assert together == pytest.approx(alone, abs=1e-5)
        del shapes[:]
        compare(model, model, text_features(native, model.tokenizer, texts), rounds=1)
        assert max(shapes) <= (90 if native_class is AutoModel else 60)

    def test_against_a_model_of_another_kind(self, folder: Path, tmp_path: Path) -> None:
        """With a tokenizer and widths of its own: the same rows, but other tokens and states."""
        write(
            tmp_path / "pairs.csv",
            [row | {"score": row["label"]} for row in rows(40, 3)],
            ["sentence", "other", "score"],
        )
        other = save_with_tokenizer(tiny_model(BERT, hidden_size=16), tmp_path / "smaller", reversed(WORDS))
        arguments = ["--data", tmp_path / "pairs.csv", "--task", "similarity", "--text-column", "sentence"]
        arguments += ["--text-column", "other", "--draws", 50]
        done = run("evaluate", folder, *arguments, "--against", other, "--json")
        assert done.exit_code == 0, done.stderr
        against = json.loads(done.stdout)["against"]
        assert against["agreement"] is None
        assert against["rows_per_second"]["ratio"] > 0
        alone = json.loads(run("evaluate", other, *arguments, "--json").stdout)
        assert against["metrics"] == alone["metrics"]
        assert "rows per second" in run("evaluate", folder, *arguments, "--against", other).stdout

    @pytest.mark.slow
    def test_a_model_against_itself(self, folder: Path, tmp_path: Path) -> None:
        finetune(folder, tmp_path / "tuned", data(folder))
        source = collab.DataSource(str(tmp_path / "dev.tsv"))
        evaluation = collab.checkpoints.evaluate(str(tmp_path / "tuned"), source, against=str(tmp_path / "tuned"))
        against = evaluation.report.against
        assert against["agreement"]["kl"] == pytest.approx(0, abs=1e-6)
        assert against["agreement"]["top1"] == 1
        assert against["hidden_cosine"] == pytest.approx([1, 1], abs=1e-6)
        assert all(difference == {"value": 0, "low": 0, "high": 0} for difference in against["difference"].values())

    def test_metrics(self) -> None:
        columns = {
            "label": np.array([1, 1, 0, 0]),
            "predicted": np.array([1, 0, 0, 0]),
            "classes": np.array([2] * 4),
        }
        assert measure("classification", columns) == pytest.approx(
            {"accuracy": 3 / 4, "f1": 2 / 3, "matthews": 1 / 3**0.5}
        )
        columns = {"loss": np.array([1.0, 3.0]), "tokens": np.array([1, 3]), "correct": np.array([1, 0])}
        assert measure("masked-lm", columns) == {"loss": 1.0, "accuracy": 0.25}
        columns = {"label": np.arange(5.0), "predicted": np.arange(5.0) ** 3}
        assert measure("regression", columns)["spearman"] == pytest.approx(1)
        assert measure("regression", columns)["pearson"] < 1

    def test_matthews_of_many_rows(self) -> None:
        """Products of four counts do not fit 64 bits."""
        label = np.arange(200_000) % 2
        predicted = np.where(np.arange(200_000) % 20 < 2, 1 - label, label)
        columns = {"label": label, "predicted": predicted, "classes": np.full(len(label), 2)}
        assert measure("classification", columns)["matthews"] == pytest.approx(0.8)

    @pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
    @pytest.mark.parametrize("classes", [2, 3, 5])
    def test_metrics_of_classes_are_those_of_scikit_learn(self, classes: int) -> None:
        generator = np.random.default_rng(classes)
        for rows_, known in itertools.product((1, 4, 50), (1, classes)):  # of fewer rows not every class occurs
            label, predicted = generator.integers(known, size=(2, rows_))
            columns = {"label": label, "predicted": predicted, "classes": np.full(rows_, classes)}
            average = "binary" if classes == 2 else "macro"
            expected = {
                "accuracy": sklearn_metrics.accuracy_score(label, predicted),
                "f1": sklearn_metrics.f1_score(label, predicted, average=average, zero_division=0),
                "matthews": sklearn_metrics.matthews_corrcoef(label, predicted),
            }
            assert measure("classification", columns) == pytest.approx(expected)

    def test_intervals_cover(self) -> None:
        """Of 95 % intervals of an accuracy, about 95 % hold the true one."""
        generator = np.random.default_rng(0)
        held = 0
        for seed in range(40):
            labels = np.ones(200, dtype=int)
            predicted = (generator.random(200) < 0.8).astype(int)
            columns = {"label": labels, "predicted": predicted, "classes": np.full(200, 2)}
            accuracy = intervals("classification", columns, draws=100, seed=seed)["accuracy"]
            held += accuracy["low"] <= 0.8 <= accuracy["high"]
        assert 33 <= held <= 40

    def test_entities(self) -> None:
        pytest.importorskip("seqeval", reason="the train extra is not installed")
        from collab.evaluation.predict import _entities

        names = ["O", "B-X", "I-X"]
        labels = torch.tensor([[1, 2, 0, 1, -100]])
        predicted = torch.tensor([[1, 2, 0, 0, 1]])
        assert _entities(names, predicted, labels, labels != -100) == {
            "found": [1],
            "entities": [2],
            "entities_predicted": [1],
        }


class TestSampling:
    def test_every_pass_is_another_order_of_nearly_all_rows(self) -> None:
        lengths = [1 + number % 7 for number in range(103)]
        sampler = LengthSampler(lengths, 8, seed=0)
        passes = []
        for epoch in (0, 1, 0):
            sampler.set_epoch(epoch)
            passes.append(list(sampler))
        assert passes[0] == passes[2] != passes[1]
        for rows in passes:
            assert len(rows) == len(set(rows)) == len(sampler) == 96
            spread = [
                max(lengths[row] for row in rows[i : i + 8]) - min(lengths[row] for row in rows[i : i + 8])
                for i in range(0, 96, 8)
            ]
            assert sum(spread) / len(spread) < 1.5, "rows of like length are together"
        assert len(list(LengthSampler(lengths[:5], 8, seed=0))) == 5

    def test_the_passes_of_a_step_have_rows_of_different_lengths(self) -> None:
        lengths = [1 + number % 7 for number in range(448)]
        rows = list(LengthSampler(lengths, 16, seed=0, passes=4))
        assert len(set(rows)) == len(rows) == 448

        def spread(size: int) -> float:
            steps = [[lengths[row] for row in rows[first : first + size]] for first in range(0, len(rows), size)]
            return sum(max(step) - min(step) for step in steps) / len(steps)

        assert spread(4) < 0.5
        assert spread(16) > 2

    def test_masks_depend_on_the_row_alone(self, folder: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        texts = ["a b c d e f g h i j k l m n o p q r s t", "b c d", "x y z a b c d e f g"]
        whole = dict(tokenizer(texts, padding=True, return_tensors="pt"))
        masked = mask_batch(whole, tokenizer, seed=0, step=3)
        alone = mask_batch(dict(tokenizer([texts[1]], return_tensors="pt")), tokenizer, seed=0, step=3)
        assert torch.equal(masked["labels"][1, :5], alone["labels"][0])
        assert torch.equal(masked["input_ids"][1, :5], alone["input_ids"][0])
        assert not torch.equal(masked["labels"], mask_batch(whole, tokenizer, seed=0, step=4)["labels"])
        special = torch.isin(whole["input_ids"], torch.tensor(tokenizer.all_special_ids))
        assert (masked["labels"][special] == -100).all()


class TestBadInput:
    def refused(self, folder: Path, *arguments: object) -> str:
        names = [path.name for path in folder.parent.iterdir()]
        done = run("finetune", folder, folder.parent / "tuned", *arguments, *FAST)
        assert done.exit_code in (1, 2)
        assert isinstance(done.exception, SystemExit), "a message, not a traceback"
        assert [path.name for path in folder.parent.iterdir()] == names
        return " ".join(done.stderr.split())

    def test_data(self, folder: Path, tmp_path: Path) -> None:
        train, dev = (("--train", tmp_path / "train.tsv"), ("--eval", tmp_path / "dev.tsv"))
        task = ("--task", "classification")
        both = (*task, *train, *dev)
        assert "no column 'text'; its first line names sentence, label" in self.refused(
            folder, *both, "--text-column", "text"
        )
        assert "no column 'class'" in self.refused(folder, *task, *train, *dev, "--label-column", "class")
        assert "--eval" in self.refused(folder, *task, *train)
        (tmp_path / "empty.tsv").write_text("sentence\tlabel\n")
        assert "empty.tsv has no rows" in self.refused(folder, *task, *train, "--eval", tmp_path / "empty.tsv")
        assert "classification has no metric 'pearson'" in self.refused(
            folder, *task, *train, *dev, "--metric", "pearson"
        )
        assert "Unknown task" in self.refused(folder, "--task", "glue/xyz", *train, *dev)
        assert "only 1 names" in self.refused(folder, *task, *train, *dev, "--labels", "one")
        words = write(tmp_path / "words.csv", [{"sentence": "a", "label": "x"}] * 2, ["sentence", "label"])
        assert "are not numbers" in self.refused(folder, "--task", "regression", "--train", words, *dev)

    def test_labels_that_do_not_fit_the_head(self, folder: Path, tmp_path: Path) -> None:
        short = replace(OPTIONS, run=replace(RUN, steps=2, evaluations=1))
        finetune(folder, tmp_path / "tuned", data(folder), options=short)
        for name in ("train", "dev"):
            table = [row | {"label": number % 3} for number, row in enumerate(rows(32, 1))]
            write(tmp_path / f"{name}.csv", table, ["sentence", "label"])
        places = tmp_path / "tuned", tmp_path / "again"
        with pytest.raises(collab.errors.DataError, match=r"3 labels .* head 2: .* --new-head"):
            finetune(*places, data(folder, ".csv"), options=short)
        assert len(finetune(*places, data(folder, ".csv", new_head=True), options=short)["labels"]) == 3
        with pytest.raises(collab.errors.DataError, match="the label 2, but the model's head has"):
            collab.checkpoints.evaluate(str(tmp_path / "tuned"), collab.DataSource(str(tmp_path / "dev.csv")))

    def test_weights_in_half_precision(self, folder: Path) -> None:
        """As `collab.load` gives them if the file holds them so: most steps would round to none."""
        loaded = collab.load(str(folder), auto_class=AutoModelForSequenceClassification)
        loaded.model.to(torch.bfloat16)
        examples = [collab.Examples("file", "file", [("a",)] * 4, ["0", "1"] * 2, None)] * 2
        with pytest.raises(collab.errors.TrainingError, match=r"needs weights in float32\. Call model\.float\(\)"):
            collab.finetune(loaded, collab.task_named("classification"), *examples)

    def test_a_regression_has_one_number(self, folder: Path, tmp_path: Path) -> None:
        both = ("--task", "regression", "--train", tmp_path / "train.tsv", "--eval", tmp_path / "dev.tsv")
        assert "has no classes to name" in self.refused(folder, *both, "--labels", "a,b")
        with pytest.raises(collab.errors.ConfigurationError, match="answers with 2 numbers"):
            collab.finetune(
                collab.load(str(folder), auto_class=AutoModelForSequenceClassification),
                collab.task_named("regression"),
                *[collab.Examples("file", "file", [("a",)] * 4, [0.5] * 4, None)] * 2,
                teacher=tiny_model(BERT, AutoModelForSequenceClassification._model_mapping[BERT.config_class]),
            )

    @pytest.mark.parametrize(
        ("labels", "names", "message"),
        [
            ([-1], None, "the label -1"),
            ([2], ("a", "b"), "the label 2"),
            ([0.5], None, "the label 0.5"),
            (["c"], None, "the label 'c'"),
        ],
    )
    def test_labels_that_are_none(self, labels: list[Any], names: tuple[str, ...] | None, message: str) -> None:
        with pytest.raises(collab.errors.DataError, match=message):
            class_numbers(collab.Examples("file", "file", [("x",)], labels, names), ["a", "b"])

    def test_labels_by_number_and_name(self) -> None:
        assert class_numbers(collab.Examples("file", "file", [], [0, 1], ("b", "a")), ["a", "b"]) == [1, 0]
        assert class_numbers(collab.Examples("file", "file", [], [0, 1], ("no", "yes")), ["YES", "NO"]) == [1, 0]
        assert class_numbers(collab.Examples("file", "file", [], ["no", "yes"], None), ["YES", "NO"]) == [1, 0]
        assert class_numbers(collab.Examples("file", "file", [], ["a", "A"], None), ["A", "a"]) == [1, 0]
        assert class_numbers(collab.Examples("file", "file", [], [0, 1], ("no", "yes")), ["LABEL_0", "LABEL_1"]) == [
            0,
            1,
        ]
        with pytest.raises(collab.errors.DataError, match="only some are the same"):
            class_numbers(collab.Examples("file", "file", [], [0, 1], ("no", "maybe")), ["YES", "NO"])
        assert label_names([collab.Examples("file", "file", [], [1, "1", "x"], None)]) == ["1", "x"]
        assert class_numbers(collab.Examples("file", "file", [], [0, "b"], None), ["a", "b"]) == [0, 1]
        assert class_numbers(collab.Examples("file", "file", [], [1, 2, 3], None), ["1", "2", "3"]) == [0, 1, 2]
        assert class_numbers(collab.Examples("file", "file", [], [0, 1], ("1", "2")), ["1", "2"]) == [0, 1]
        with pytest.raises(collab.errors.DataError, match="has the label 0"):
            class_numbers(collab.Examples("file", "file", [], [0, 1], None), ["1", "2", "3"])

    def test_words_and_tags(self, folder: Path, tmp_path: Path) -> None:
        dev = ("--eval", tmp_path / "train.jsonl")
        for row, message in (
            ({"tokens": ["a", "b"], "tags": ["O"]}, "2 words and 1 labels"),
            ({"tokens": ["a"], "tags": "O"}, "a list of labels"),
            ({"tokens": ["a"], "tags": ["NOUN"]}, "do not say where an entity begins"),
        ):
            write(tmp_path / "train.jsonl", [row] * 2, ["tokens", "tags"])
            arguments = ("--task", "token-classification", "--train", tmp_path / "train.jsonl", *dev)
            assert message in self.refused(folder, *arguments)

    def test_what_lies_where_work_is_kept_stays(self, folder: Path, tmp_path: Path) -> None:
        work = tmp_path / "tuned.training"
        work.mkdir()
        (work / "mine.txt").write_text("precious")
        both = ("--train", tmp_path / "train.tsv", "--eval", tmp_path / "dev.tsv", "--restart")
        assert "needed for unfinished work" in self.refused(folder, "--task", "classification", *both)
        assert (work / "mine.txt").read_text() == "precious"
        prunes = ("--prune-at", 0.7, *both)
        assert "--prune-heads" in self.refused(folder, "--task", "classification", *prunes)
        assert "only measured" in self.refused(folder, "--task", "similarity", *both)

    def test_regression_needs_one_number(self, folder: Path, tmp_path: Path) -> None:
        short = replace(OPTIONS, run=replace(RUN, steps=2, evaluations=1))
        finetune(folder, tmp_path / "tuned", data(folder), options=short)
        source = collab.DataSource(str(tmp_path / "dev.tsv"))
        with pytest.raises(collab.errors.DataError, match="answers with 2 numbers, and regression needs one"):
            collab.checkpoints.evaluate(str(tmp_path / "tuned"), source, collab.task_named("regression"))

    def test_names_that_are_numbers(self) -> None:
        examples = collab.Examples("file", "file", [("a",)] * 3, [1, 2, 3], None)
        assert label_names([examples], ("1", "2", "3")) == ["1", "2", "3"]

    def test_no_head(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(collab.errors.DataError, match=r"no head for classification.*Fine-tune it first"):
            collab.checkpoints.evaluate(str(folder), collab.DataSource(str(tmp_path / "dev.tsv")), CLASSIFICATION)
        with pytest.raises(collab.errors.ConfigurationError, match="--task"):
            collab.checkpoints.evaluate(str(folder), collab.DataSource(str(tmp_path / "dev.tsv")))

    def test_a_teacher_for_other_labels(self, folder: Path, tmp_path: Path) -> None:
        short = replace(OPTIONS, run=replace(RUN, steps=2, evaluations=1))
        finetune(folder, tmp_path / "teacher", data(folder, labels=("no", "yes")), options=short)
        with pytest.raises(collab.errors.ConfigurationError, match="The teacher answers with no, yes"):
            finetune(folder, tmp_path / "tuned", data(folder), options=short, teacher=str(tmp_path / "teacher"))
