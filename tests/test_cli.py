"""The command: what it shows, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner, Result
from huggingface_hub.utils import httpx
from safetensors.torch import load_file, save_file
from tiny import BY_TYPE, SENTENCES, often, tiny_model
from transformers import AutoConfig

import collab
from collab.cli import main
from collab.cli.bench_tables import show_bench
from collab.cli.head_tables import show_inspection, show_scores
from collab.cli.outcome import show_steps, to_heal, to_serve
from collab.cli.tables import show_plan
from collab.decomposition import FORMS
from collab.evaluation.bench_report import BenchedModel, BenchReport, BenchSetting, PeakMemory
from collab.evaluation.timing import Spread
from collab.heads.inspection import Inspection, LayerInspection
from collab.heads.scores import HeadScores
from collab.io.unfinished import WHOLE
from collab.models.cache import CacheBytes
from collab.planning.plan import Plan, PlanOption, Spectrum
from collab.reparametrization.layer import LayerProblem
from collab.steps.conversion import Conversion, LayerConversion
from collab.steps.export import ExpandedLayer, Expansion
from collab.steps.step import Count, Parameters

BERT = BY_TYPE["bert"]
FAST = ("--no-speed", "--refine", "4")
SIDES = ("encoder", "decoder")
Run = Callable[..., Result]
CACHE = CacheBytes(12_582_912, 25_165_824, "bfloat16", 12_582_913, 25_165_825)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny checkpoint on disk."""
    folder = tmp_path / "model"
    tiny_model(BERT).save_pretrained(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `collab convert`, by default quickly; makes sure that a failure leaves nothing behind."""

    def convert(*arguments: object, fails: int = 0) -> Result:
        before = snapshot(tmp_path)
        result = CliRunner().invoke(main, ["convert", *FAST, *map(str, arguments)])
        if fails:
            assert result.exit_code == fails, result.output
            assert any(line.startswith("Error: ") for line in result.stderr.splitlines()), result.stderr
            assert "Traceback" not in result.output
            assert snapshot(tmp_path) == before, "the file system was touched"
        else:
            assert result.exit_code == 0, result.output
        return result

    return convert


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content, and every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"folder" for path in folder.rglob("*")
    }


class TestShows:
    def test_tables(self, run: Run, model: Path, tmp_path: Path) -> None:
        result = run(model, tmp_path / "out", "--rank", 8, "-v")
        for text in (
            "encoder.layer.*.attention.self",
            "8/32",
            "4,224",
            "query and key",
            "attention",
            "model",
            "reloaded",
        ):
            assert text in result.stdout, text
        assert AutoConfig.from_pretrained(tmp_path / "out").collab_layers[0] == {
            "form": "cp",
            "rank": 8,
            "content": "exact",
        }

    def test_the_end_fits_a_screen(self, run: Run, model: Path, tmp_path: Path) -> None:
        result = run(model, tmp_path / "out", "--rank", 8, "--speed")
        lines = [*result.stderr.splitlines(), *result.stdout.splitlines()]
        assert len(lines) <= 24, "\n".join(lines)
        for text in ("rank 8 of 32", "query and key", "against the original", "times as fast", "Wrote", "Next:"):
            assert text in result.stdout, text
        assert "times as fast" not in run(model, tmp_path / "again", "--rank", 8).stdout

    def test_refused_before_the_work(
        self, run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "chapter.tex").write_text("years of work")
        (model / "tokenizer.json").write_text("{")
        (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        for output in ("there", "out"):  # an output that exists, a tokenizer that cannot be read
            assert "Calibrating" not in run(model, tmp_path / output, "--rank", 8, fails=1).stderr
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (model / name).unlink()
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
        stderr = run(model, tmp_path / "out", "--rank", 8, fails=1).stderr
        assert "are free" in stderr
        assert "Calibrating" not in stderr

    def test_json_alone_on_stdout(self, run: Run, model: Path, tmp_path: Path) -> None:
        result = run(model, tmp_path / "out", "--rank", "0.5", "--form", "tucker", "--json")
        report = json.loads(result.stdout)
        assert report == json.loads((tmp_path / "out" / "collab_report.json").read_text())
        assert [layer["rank"] for layer in report["layers"]] == [16, 16]

    def test_quiet(self, run: Run, model: Path, tmp_path: Path) -> None:
        assert run(model, tmp_path / "out", "--rank", 8, "-q").output == ""

    def test_verbose_says_each_layer(self, run: Run, model: Path, tmp_path: Path) -> None:
        assert "encoder.layer.1.attention.self: cp, rank 8" in run(model, tmp_path / "out", "--rank", 8, "-v").stderr

    @pytest.mark.parametrize(
        ("rank", "expected"), [("8", [8, 8]), ("1.0", [32, 32]), ("4,16", [4, 16]), ("0.25, 3", [8, 3]), ("1", [1, 1])]
    )
    def test_ranks(self, run: Run, model: Path, tmp_path: Path, rank: str, expected: list[int]) -> None:
        report = json.loads(run(model, tmp_path / "out", "--rank", rank, "--json").stdout)
        assert [layer["rank"] for layer in report["layers"]] == expected

    def test_settings_are_reported(self, run: Run, model: Path, tmp_path: Path) -> None:
        options = ["--solver", "tensorly", "--max-sweeps", 3, "--tolerance", 0, "--precision", "float32", "--seed", 5]
        options += ["--refine", "auto"]
        report = json.loads(run(model, tmp_path / "out", "--rank", 8, *options, "--device", "cpu", "--json").stdout)
        assert report["settings"] == {
            "rank": 8,
            "form": "cp",
            "params": None,
            "max_error": None,
            "optimize": "size",
            "allocation": "auto",
            "content": "exact",
            "refine": "auto",
            "compare": True,
            "seed": 5,
            "solver": {
                "method": "tensorly",
                "max_sweeps": 3,
                "tolerance": 0.0,
                "ridge": collab.SolverOptions.ridge,
                "precision": "float32",
                "device": "cpu",
                "even_heads": False,
            },
        }
        assert {layer["sweeps"] for layer in report["layers"]} == {3}
        assert {layer["converged"] for layer in report["layers"]} == {False}

    def test_dtype_overwrite_and_shards(self, run: Run, model: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        run(model, out, "--rank", 8)
        run(model, out, "--rank", 8, "--overwrite", "--dtype", "bfloat16", "--max-shard-size", "20KB")
        assert AutoConfig.from_pretrained(out).dtype == torch.bfloat16
        assert (out / "model.safetensors.index.json").is_file()

    def test_a_larger_result_is_said(self, run: Run, model: Path, tmp_path: Path) -> None:
        assert "larger than the original" in run(model, tmp_path / "out", "--rank", 32, "--form", "tucker").stdout

    def test_help_has_examples(self) -> None:
        for arguments in ([], ["--help"], ["convert", "--help"]):
            output = CliRunner().invoke(main, arguments).output
            assert "collab convert" in output
            assert "--rank" in output

    def test_module_and_version(self) -> None:
        done = subprocess.run([sys.executable, "-m", "collab", "--version"], capture_output=True, text=True, check=True)
        assert "collab, version" in done.stdout


class TestCalibration:
    """What is calibrated on, by the command's options."""

    @pytest.fixture
    def embedder(self, model: Path) -> Path:
        """A checkpoint with a tokenizer."""
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
        (model / "vocab.txt").write_text("\n".join(words))
        (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
        (model.parent / "text.csv").write_text(
            "id,first,second\n" + "".join(f"{i},a b {'c d e'[i % 3 :]},f g\n" for i in range(20))
        )
        return model

    def report(self, result: Result) -> dict:
        return json.loads(result.stdout)

    def test_default_is_synthetic(self, run: Run, model: Path, tmp_path: Path) -> None:
        report = self.report(run(model, tmp_path / "out", "--rank", 8, "--json"))
        assert report["calibration"] == {"source": "synthetic", "rows": 768, "held_out": 96, "tokens": 896 * 16}
        assert report["agreement"]["rows"] == 96
        assert all(layer["held_out_error"] > 0 for layer in report["layers"])

    def test_none_and_full_rank(self, run: Run, model: Path, tmp_path: Path) -> None:
        for number, options in enumerate((["--rank", 8, "--calibration", "none"], ["--rank", "1.0"])):
            report = self.report(run(model, tmp_path / str(number), *options, "--refine", "auto", "--json"))
            assert report["calibration"] is report["agreement"] is None

    def test_a_file(self, run: Run, embedder: Path, tmp_path: Path) -> None:
        text = tmp_path / "text.csv"
        options = ["--calibration", text, "--text-column", "first", "--text-column", "second"]
        cache = ["--calibration-cache", tmp_path / "moments.safetensors"]
        result = run(embedder, tmp_path / "out", "--rank", 8, *options, *cache, "--calibration-samples", 16, "--json")
        assert self.report(result)["calibration"]["columns"] == ["first", "second"]
        assert self.report(result)["calibration"]["rows"] == 16
        again = run(embedder, tmp_path / "again", "--rank", 8, *options, *cache, "--calibration-samples", 16)
        rows = f"--data {text} --text-column first --text-column second"
        assert f"Next: collab heal {tmp_path / 'again'} healed {rows}" in " ".join(again.stdout.split())
        layers = json.loads((tmp_path / "again" / "collab_report.json").read_text())["layers"]
        assert [layer["score_error"] for layer in layers] == [
            layer["score_error"] for layer in self.report(result)["layers"]
        ]
        stderr = run(embedder, tmp_path / "no", "--rank", 8, *options, *cache, "--max-length", 4, fails=1).stderr
        assert "other data" in stderr
        card = (tmp_path / "out" / "README.md").read_text()
        assert re.search(r"against the original, on \d held-out rows?:", card)

    def test_tables(self, run: Run, embedder: Path, tmp_path: Path) -> None:
        text = run(embedder, tmp_path / "out", "--params", 0.4, "--form", "auto", "-v", "--speed").stdout
        text = " ".join(text.split())
        for expected in (
            "held out",
            "scores",
            "against the original",
            "embedding cosine",
            "(chosen)",
            "times as fast",
            "(R=",
        ):
            assert expected in text, expected

    def test_bad_input(self, run: Run, embedder: Path, tmp_path: Path) -> None:
        text, out = tmp_path / "text.csv", tmp_path / "out"
        (tmp_path / "empty.txt").write_text("")
        (tmp_path / "one.txt").write_text("a b\n")
        for options, message, code in (
            (["--calibration", text, "--text-column", "text"], "its first line names id, first, second", 1),
            (["--calibration", text], "several columns", 1),
            (["--calibration", tmp_path / "empty.txt"], "no rows", 1),
            (["--calibration", tmp_path / "one.txt"], "At least 2 rows", 1),
            (["--calibration", "not/there"], "no data set of that name", 1),
            (["--text-column", "text", "--calibration", "synthetic"], "none of these sources has columns", 2),
            (["--calibration-samples", 1], "at least 2 rows", 2),
            (["--params", 0.5], "rank and params were given", 2),
            (["--form", "auto"], "needs a budget", 2),
        ):
            assert message in run(embedder, out, "--rank", 8, *options, fails=code).stderr.replace("\n", " "), options
        assert "(params, --params)" in run(embedder, out, "--params", 0.001, fails=2).stderr

    def test_a_table_beside_text(self, run: Run, embedder: Path, tmp_path: Path) -> None:
        """--text-column is for those of a command's sources that have columns."""
        (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES))
        table = ("--calibration", tmp_path / "text.csv", "--text-column", "first")
        heal = ("--heal", tmp_path / "sentences.txt", "--heal-steps", 1, "--json")
        report = self.report(run(embedder, tmp_path / "out", "--rank", 8, *table, *heal))
        assert report["calibration"]["columns"] == ["first"]
        assert report["history"][0]["data"]["source"] == "sentences.txt"


class TestLongRows:
    def test_refused_before_the_work(self, run: Run, model: Path, tmp_path: Path) -> None:
        blocks = ("--attention", "local", "--block", 8, "--dense-below", 16)
        for options, message in (
            (("--attention", "local"), "longer than the longest row"),
            ((*blocks, "--dense-layers", "auto"), "Give some"),
            ((*blocks, "--max-length", 400), "Extend them with positions"),
        ):
            stderr = " ".join(run(model, tmp_path / "out", "--rank", 8, *options, fails=2).stderr.split())
            assert message in stderr, options
            assert "Calibrating" not in stderr, options
        run(model, tmp_path / "out", "--rank", 8, *blocks, "--max-length", 24)  # of the rows of the calibration
        for option in (("--block", 8), ("--dense-below", 16), ("--dense-layers", 1)):
            stderr = " ".join(run(model, tmp_path / "no", "--rank", 8, *option, fails=2).stderr.split())
            assert f"{option[0]} counts only with --attention, and --attention is dense" in stderr


class TestPlan:
    def test_shows(self, model: Path, tmp_path: Path) -> None:
        figure = tmp_path / "plan.png"
        result = CliRunner().invoke(main, ["plan", str(model), "--figure", str(figure)])
        assert result.exit_code == 0, result.output
        for expected in ("concat", "tucker", "query/key", "90 % of the energy", "form at rank", "before refinement"):
            assert expected in " ".join(result.stdout.split()), expected
        assert figure.stat().st_size > 10_000
        result = CliRunner().invoke(main, ["plan", str(model), "--params", "0.4", "--json", "--calibration", "none"])
        plan = json.loads(result.stdout)
        assert len(plan["options"]) == 3
        assert plan["calibration"] is None
        assert plan["unit"] == "params"
        assert {option["budget"] for option in plan["options"]} == {0.4}
        for option in plan["options"]:
            assert option["rank"] == max(layer["queries-keys"] for layer in option["widths"])

    def test_bad_input(self, model: Path, tmp_path: Path) -> None:
        for options, message, code in (
            (["--params", "2"], "is not in the range 0<x<=1", 2),
            (["--figure", str(tmp_path / "no" / "plan.png")], "could not be written", 1),
            (["--params", "0.01", "--calibration", "none"], "No rank fits 0.01 of the query/key parameters", 2),
            (["--calibration", "not/there"], "no data set of that name", 1),
        ):
            result = CliRunner().invoke(main, ["plan", str(model), *options])
            assert result.exit_code == code, result.output
            assert message in result.stderr.replace("\n", " ")


class TestWidth:
    """Tables of large models with long names fit 80 columns, and neither a name nor a heading is cut."""

    NAMES = tuple(
        f"model.{side}.block.{i}.layer.{side == 'decoder':d}.SelfAttention" for side in SIDES for i in (0, 23)
    )

    def check(self, capsys: pytest.CaptureFixture[str], *expected: str) -> None:
        shown = capsys.readouterr().out
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= 80
        for text in expected:
            assert text in shown, text

    def test_report(self, capsys: pytest.CaptureFixture[str]) -> None:
        layer = LayerConversion("", "tucker", 1024, 4096, 0.1, 0.1, 0.1, 200, False, 1.0, 1.0, Count(10**8, 10**8))
        predicted = {form: {"error": 0.1234, "rank": 1024} for form in FORMS}
        total = Count(10**10, 10**10)
        report = Conversion(
            tuple(replace(layer, name=name) for name in self.NAMES),
            Parameters(total, total, total),
            {},
            1.0,
            calibration={"source": "synthetic"},
            comparison=[predicted] * len(self.NAMES),
        )
        show_steps([report])
        self.check(capsys, "held out", "100,000,000", "0.1234", "(R=1024)", "after / before")

    def test_plan(self, capsys: pytest.CaptureFixture[str]) -> None:
        widths = ({"queries-keys": 1024},) * len(self.NAMES)
        flops = {32: 0.1, 128: 12.5, 512: 0.1}
        choice = PlanOption(0.5, 0.5, "tucker", 1024, widths, 0.1, [0.1], 0.5, 0.9, flops, {}, CACHE, True, 0.95)
        spectra = [Spectrum(name, "encoder", [1024, 4096], [0.5, 1.0], [0.5, 1.0], [0.95, 1.0]) for name in self.NAMES]
        layers = {name: {"queries-keys": 4096} for name in self.NAMES}
        show_plan(
            Plan("params", layers, [choice] * 3, None, 10**9, 10**10, CACHE, spectra, "Take it.", "Refined."), "model"
        )
        self.check(
            capsys, "query/key", "of model", "a step", "tucker   1024     0.10", "12,582,912", "12,582,913", "product"
        )

    def test_bench(self, capsys: pytest.CaptureFixture[str]) -> None:
        names = ("/a/folder/" + "of-a-long-name-" * 8, "original")
        models = [
            BenchedModel(
                name,
                "CollaborativeBertForSequenceClassification",
                10**10,
                10**11,
                "sdpa",
                CACHE,
                PeakMemory(10**11, 10**9),
            )
            for name in names
        ]
        spread = Spread(12.3456, 10.1, 14.2)
        setting = BenchSetting(128, 512, (spread, spread), (123456.7, 123456.7), Spread(1.234, 1.1, 1.3))
        show_bench(BenchReport(tuple(models), (setting,), "tokens", 20, "bfloat16", "cpu", 2, True, (128, 512)))
        headings = ("batch", "length", "ms", "quartiles", "tokens/s", "ratio", "peak memory", "libraries")
        self.check(capsys, *headings, "10100 14200", "1.10 1.30")

    def test_inspection(self, capsys: pytest.CaptureFixture[str]) -> None:
        work = dict.fromkeys((32, 128, 512, 2048), 10**11)
        layers = tuple(
            LayerInspection(
                name,
                "encoder",
                "original",
                12 + i,
                128,
                4096,
                {"content_bias": (16, 4096)},
                10**8,
                10**8,
                work,
                work,
                4096,
                128,
            )
            for i, name in enumerate(self.NAMES)
        )
        counts = {"query_key": 10**8, "attention": 2 * 10**8, "model": 10**10}
        show_inspection(Inspection("t5", 4096, layers, 1.0, counts, CACHE, ()))
        self.check(
            capsys,
            "layer",
            "query/key",
            "value/output",
            "content_bias",
            "2048 tokens",
            "(1.00)",
            "holds 12,582,912 bytes",
        )

    @pytest.mark.parametrize("heads", [12, 16, 40])
    def test_scores(self, capsys: pytest.CaptureFixture[str], heads: int) -> None:
        values = {name: [-1.0 * head for head in range(heads)] for name in self.NAMES}
        alive = {name: tuple(range(heads)) for name in self.NAMES}
        totals = dict.fromkeys(self.NAMES, heads)
        show_scores(HeadScores(self.NAMES, alive, totals, {"gradient": values}), None, [])
        self.check(capsys, "-100", f" {heads - 1} ")

    def test_card(self, capsys: pytest.CaptureFixture[str]) -> None:
        layer = ExpandedLayer(self.NAMES[0], "cp", 1, 1, 1, 1.0)
        show_steps([Expansion("BertModel", (layer,), Count(1, 1), 1.0, 1.0)])
        self.check(capsys, "rank")


ONLY_WITH = {
    "prune model out --heads 0.5 --heal-steps 200": "--heal-steps counts only with --heal.",
    "prune model out --heads 0.5 --heal-trainable layers": "--heal-trainable counts only with --heal.",
    "prune model out --heads 0.5 --restart": "--restart counts only with --heal.",
    "prune model out --heads 0.5 --text-column 0": "--text-column counts only with --data or --heal.",
    "convert model out --rank 8 --heal-steps 200": "--heal-steps counts only with --heal.",
    "convert model out --rank 8 --text-column 0": "--text-column counts only with --calibration or --heal.",
    "export model out --format onnx --calibration-split train": "--calibration-split counts only with --calibration.",
    "compress model out --flops 0.5 --heal-steps 0 --heal-beams 1": "only with --heal-steps, and --heal-steps is 0.",
    "evaluate model --task glue/mnli --split validation": "--split counts only with --data.",
    "finetune model out --task glue/mnli --distill 0.5": "--distill counts only with --teacher.",
    "finetune model out --task glue/mnli --prune-at 0.5": "--prune-at counts only with --prune-heads.",
    "finetune model out --task glue/mnli --eval-split test": "--eval-split counts only with --eval.",
    "finetune model out --task glue/mnli --train a --eval-split test": "--eval-split counts only with --eval.",
    "lengthen model out --summaries mean:8": "only with --attention summaries, and --attention is local.",
    "lengthen model out --dense-layers 1 --dense-budget 0.4": "--dense-budget counts only with --dense-layers auto.",
    "lengthen model out --data a": "--data counts only with --dense-layers auto.",
    "convert model out --rank 8 --summaries mean:8": "only with --attention summaries, and --attention is dense.",
    "plan model --step-bytes 0.5": "--step-bytes counts only with --whole.",
    "heads model --data a --sentence b": "--sentence counts only with --figures or --html.",
    "heads model --data a --against b": "--against counts only with --html.",
    "report model --overwrite": "--overwrite counts only with --html.",
}


@pytest.mark.parametrize("line", ONLY_WITH)
def test_options_without_what_they_are_of(line: str) -> None:
    """Also where what is given is the default."""
    done = CliRunner().invoke(main, line.split())
    assert done.exit_code == 2
    assert ONLY_WITH[line] in " ".join(done.stderr.split())


def test_the_next_command_reads_the_same_rows() -> None:
    """Weights, subsets and splits included."""
    checkpoint, out = collab.Checkpoint(tiny_model(BERT)), Path("out")

    def heals(source: Any) -> list[str]:
        return to_heal(checkpoint, out, source)[4:]

    def serves(source: Any) -> list[str]:
        return to_serve(checkpoint, out, source)[8:]

    assert heals("none") == ["--data", "sentences.txt"]
    one = collab.DataSource("glue", ("sentence1", "sentence2"), "mrpc", "test")
    of_heal = "--data glue --text-column sentence1 --text-column sentence2 --subset mrpc --split test"
    assert heals(one) == of_heal.split()
    sources = {"wiki": collab.DataSource("wiki.txt"), "words": "synthetic", "table": collab.DataSource("t.csv", ("0",))}
    words = "--calibration wiki.txt=2 --calibration synthetic=0.5 --calibration t.csv --text-column 0"
    assert serves(collab.Mixture(sources, {"wiki": 2, "words": 0.5})) == words.split()
    assert serves(one)[-4:] == ["--calibration-subset", "mrpc", "--calibration-split", "test"]


def test_no_next_command_that_would_be_refused() -> None:
    images = collab.Checkpoint(tiny_model(BY_TYPE["vit"]))
    assert to_heal(images, Path("out"), "default")[4:] == ["--data", "images"]
    long = collab.lengthen(tiny_model(BERT), collab.LongOptions(block=8, dense_below=16))
    assert to_serve(long, Path("out"), "none") is None
    assert to_heal(collab.Checkpoint(tiny_model(BY_TYPE["videomae"])), Path("out"), "default") is None


class TestHub:
    def test_push(self, run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[dict] = []

        def create(self: object, repo_id: str, **_: object) -> str:
            return f"https://huggingface.co/{repo_id}"

        monkeypatch.setattr("huggingface_hub.HfApi.create_repo", create)
        monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", lambda self, **given: calls.append(given))
        result = run(model, tmp_path / "out", "--rank", 8, "--push-to-hub", "me/mine")
        assert calls[0]["repo_id"] == "me/mine"
        assert calls[0]["folder_path"] == tmp_path / "out"
        assert "model*.safetensors" in calls[0]["delete_patterns"], "those of an earlier model would be loaded"
        assert "https://huggingface.co/me/mine" in result.stdout

    def test_no_hub(self, model: Path, tmp_path: Path) -> None:
        arguments = ["convert", *FAST, str(model), str(tmp_path / "out"), "--rank", "8", "--push-to-hub", "me/mine"]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1
        assert "is complete, but could not be uploaded to me/mine" in result.stderr
        assert (tmp_path / "out" / "model.safetensors").is_file()

    def test_impossible_name(self, run: Run, model: Path, tmp_path: Path) -> None:
        assert "Hub id" in run(model, tmp_path / "out", "--rank", 8, "--push-to-hub", "a/b/c", fails=2).stderr


class TestBadInput:
    """Each: a message, exit code 2 for what was asked and 1 for what was found, and an untouched file system."""

    def test_missing_folder(self, run: Run, tmp_path: Path) -> None:
        assert "no folder" in run(tmp_path / "missing", tmp_path / "out", "--rank", 8, fails=1).stderr
        assert "Hugging Face Hub" in run("missing", tmp_path / "out", "--rank", 8, fails=1).stderr

    def test_a_file(self, run: Run, model: Path, tmp_path: Path) -> None:
        assert "is a file" in run(model / "config.json", tmp_path / "out", "--rank", 8, fails=1).stderr

    def test_no_config(self, run: Run, model: Path, tmp_path: Path) -> None:
        (model / "config.json").unlink()
        assert "no config.json" in run(model, tmp_path / "out", "--rank", 8, fails=1).stderr

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model_type": 3}'])
    def test_broken_config(self, run: Run, model: Path, tmp_path: Path, text: str) -> None:
        (model / "config.json").write_text(text)
        assert "config.json" in run(model, tmp_path / "out", "--rank", 8, fails=1).stderr

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model_type": "roformer"}, "rotary position"),
            ({"model_type": "deberta"}, "disentangled"),
            ({"model_type": "megabert"}, "does not know this architecture"),
            ({"architectures": ["BertForDancing"]}, "BertForDancing"),
            ({"position_embedding_type": "relative_key"}, "relative_key"),
            ({"model_type": "collab_bert"}, "collaborative already"),
        ],
    )
    def test_architecture(self, run: Run, model: Path, tmp_path: Path, changes: dict, message: str) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | changes))
        assert message in run(model, tmp_path / "out", "--rank", 8, fails=1).stderr

    def test_converted_already(self, run: Run, model: Path, tmp_path: Path) -> None:
        run(model, tmp_path / "out", "--rank", 8)
        assert "collaborative already" in run(tmp_path / "out", tmp_path / "again", "--rank", 4, fails=1).stderr

    @pytest.mark.parametrize(
        ("rank", "message"),
        [
            ("0", "K = 32"),
            ("-3", "K = 32"),
            ("1.5", "above 0 and at most 1"),
            ("128.0", "For 128 dimensions write 128"),
            ("0.0", "above 0 and at most 1"),
            ("33", "from 1 to 32"),
            ("8,8,8", "3 ranks were given for 2 attention layers"),
            ("8,99", "from 1 to 32"),
            ("many", "is not a rank"),
            ("8,,8", "is not a rank"),
            ("nan", "nan is not a number"),
        ],
    )
    def test_rank(self, run: Run, model: Path, tmp_path: Path, rank: str, message: str) -> None:
        assert message in run(model, tmp_path / "out", f"--rank={rank}", fails=2).stderr

    @pytest.mark.parametrize(
        "options",
        [
            ["--form", "svd"],
            ["--solver", "magic"],
            ["--max-sweeps", "0"],
            ["--tolerance", "-1"],
            ["--seed", "-1"],
            ["--device", "gpu"],
            ["--dtype", "int8"],
            ["--max-shard-size", "huge"],
        ],
    )
    def test_options(self, run: Run, model: Path, tmp_path: Path, options: list[str]) -> None:
        run(model, tmp_path / "out", "--rank", 8, *options, fails=2)

    def test_no_rank(self, run: Run, model: Path, tmp_path: Path) -> None:
        stderr = run(model, tmp_path / "out", fails=2).stderr
        assert all(example in stderr for example in ("--rank 128", "--params 0.5", "--max-error 0.1"))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
    def test_no_cuda(self, run: Run, model: Path, tmp_path: Path) -> None:
        stderr = run(model, tmp_path / "out", "--rank", 8, "--device", "cuda", fails=1).stderr
        assert "No device 'cuda' here" in stderr

    def test_output_exists(self, run: Run, model: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "config.json").write_text("{}")
        foreign = run(model, tmp_path / "out", "--rank", 8, fails=1).stderr
        assert "collab did not write it: it holds config.json" in foreign
        assert "--overwrite" not in foreign
        run(model, tmp_path / "own", "--rank", 8)
        assert "--overwrite" in run(model, tmp_path / "own", "--rank", 8, fails=1).stderr

    def test_output_is_not_a_model(self, run: Run, model: Path, tmp_path: Path) -> None:
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
        stderr = run(model, tmp_path / "thesis", "--rank", 8, "--overwrite", fails=1).stderr
        assert "did not write" in stderr
        assert "chapter.tex" in stderr

    def test_output_is_a_file(self, run: Run, model: Path, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("")
        assert "is not a folder" in run(model, tmp_path / "out", "--rank", 8, "--overwrite", fails=1).stderr

    def test_output_is_the_input_or_around_it(self, run: Run, model: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(model)
        for output in (model, tmp_path / "link", model / ".." / "model"):
            assert "is the input folder" in run(model, output, "--rank", 8, "--overwrite", fails=1).stderr
        assert "inside the output folder" in run(model, tmp_path, "--rank", 8, "--overwrite", fails=1).stderr

    def test_output_is_not_writable(self, run: Run, model: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert "cannot be created" in run(model, tmp_path / "file" / "out", "--rank", 8, fails=1).stderr
        assert "cannot be created" in run(model, "/proc/deep/out", "--rank", 8, fails=1).stderr

    def test_disk_is_too_small(self, run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
        assert "are free" in run(model, tmp_path / "out", "--rank", 8, fails=1).stderr

    def test_disk_fills(self, run: Run, model: Path, tmp_path: Path) -> None:
        """A limit on file size stands in for a full disk: writing the weights fails halfway."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        try:
            done = run(model, tmp_path / "deep" / "out", "--rank", 8, fails=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "could not be written" in done.stderr

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_weights_that_are_not_finite(self, run: Run, model: Path, tmp_path: Path, value: float) -> None:
        weights = load_file(model / "model.safetensors")
        weights["encoder.layer.1.attention.self.query.bias"][2] = value
        save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
        stderr = run(model, tmp_path / "out", "--rank", 8, fails=1).stderr
        assert "encoder.layer.1.attention.self.query.bias has NaN or infinite" in stderr

    def test_no_weights(self, run: Run, model: Path, tmp_path: Path) -> None:
        (model / "model.safetensors").rename(model / "tf_model.h5")
        stderr = run(model, tmp_path / "out", "--rank", 8, fails=1).stderr
        assert "no weights" in stderr
        assert "tf_model.h5" in stderr

    def test_missing_attention_weights(self, run: Run, model: Path, tmp_path: Path) -> None:
        weights = load_file(model / "model.safetensors")
        del weights["encoder.layer.0.attention.self.key.weight"]
        save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
        stderr = run(model, tmp_path / "out", "--rank", 8, fails=1).stderr
        assert "encoder.layer.0.attention.self.key.weight is not in the checkpoint" in stderr

    @pytest.mark.parametrize("kept", [0, 5, 200, 20_000])
    def test_truncated_weights(self, run: Run, model: Path, tmp_path: Path, kept: int) -> None:
        file = model / "model.safetensors"
        file.write_bytes(file.read_bytes()[:kept])
        assert "damaged or truncated" in run(model, tmp_path / "out", "--rank", 8, fails=1).stderr

    def test_missing_shard(self, run: Run, model: Path, tmp_path: Path) -> None:
        native = transformers.BertModel.from_pretrained(model)
        (model / "model.safetensors").unlink()
        native.save_pretrained(model, max_shard_size="20KB")
        next(model.glob("model-00002*")).unlink()
        stderr = run(model, tmp_path / "out", "--rank", 8, fails=1).stderr
        assert "model-00002" in stderr
        assert "is missing" in stderr

    def test_wrong_shapes(self, run: Run, model: Path, tmp_path: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
        assert "has shape (48,) in the weights" in run(model, tmp_path / "out", "--rank", 8, fails=1).stderr

    @pytest.mark.parametrize(
        ("changes", "message"),
        [({"hidden_size": "32"}, "hidden_size"), ({"num_hidden_layers": 0}, "num_hidden_layers in config.json")],
    )
    def test_config_values(self, run: Run, model: Path, tmp_path: Path, changes: dict, message: str) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | changes))
        assert message in run(model, tmp_path / "out", "--rank", 8, fails=1).stderr

    def test_fewer_layers_than_weights_is_said(self, run: Run, model: Path, tmp_path: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
        assert "no place for them: 16 weights" in run(model, tmp_path / "out", "--rank", 8).stdout.replace("\n", " ")

    def test_a_folder_has_no_revisions(self, run: Run, model: Path, tmp_path: Path) -> None:
        assert (
            "a revision applies only to a model on the Hub"
            in run(model, tmp_path / "out", "--rank", 8, "--revision", "v1", fails=1).stderr
        )

    def test_names_too_long_for_the_file_system(self, run: Run, model: Path, tmp_path: Path) -> None:
        run("m" * 300, tmp_path / "out", "--rank", 8, fails=1)
        for length in (245, 300):  # what is unfinished has a longer name
            assert "cannot be created" in run(model, tmp_path / ("o" * length), "--rank", 8, fails=1).stderr

    def test_names_that_are_no_text(self, run: Run, model: Path, tmp_path: Path) -> None:
        calibration = ("--calibration", "donn\udce9es.txt")
        assert "is not UTF-8" in run(model, tmp_path / "out", "--rank", 8, *calibration, fails=2).stderr

    def test_the_root_folder(self, run: Run, model: Path) -> None:
        assert "Give a name" in run(model, "/", "--rank", 8, fails=2).stderr

    def test_a_file_system_without_permissions(
        self, run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr("os.chmod", refuse)
        (model / "1_Pooling").mkdir()
        (model / "1_Pooling" / "config.json").write_text("{}")
        (model / "modules.json").write_text(json.dumps([{"path": "", "type": "a"}, {"path": "1_Pooling", "type": "b"}]))
        run(model, tmp_path / "out", "--rank", 8)
        assert (tmp_path / "out" / "1_Pooling" / "config.json").is_file()

    def test_a_download_that_breaks_off(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def break_off(*_: object, **__: object) -> str:
            raise httpx.RemoteProtocolError("peer closed connection")

        monkeypatch.setattr("collab.io.read.snapshot_download", break_off)
        said = run("me/mine", tmp_path / "out", "--rank", 8, fails=1).stderr
        assert "The download of me/mine failed: peer closed connection." in " ".join(said.split())

    def test_a_pickle_that_is_not_plain_weights(self, run: Run, model: Path, tmp_path: Path) -> None:
        """It must not be unpickled: this one would write a file."""
        (model / "model.safetensors").unlink()

        class Attack:
            def __reduce__(self) -> tuple:
                return os.system, (f"touch {tmp_path}/attacked",)

        torch.save({"encoder.layer.0.attention.self.key.weight": Attack()}, model / "pytorch_model.bin")
        stderr = run(model, tmp_path / "out", "--rank", 8, fails=1).stderr
        assert "could run any code" in stderr
        assert not (tmp_path / "attacked").exists()

    @pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps([1, 2], protocol=2)])
    def test_a_broken_pickle(self, run: Run, model: Path, tmp_path: Path, content: bytes) -> None:
        (model / "model.safetensors").unlink()
        (model / "pytorch_model.bin").write_bytes(content)
        run(model, tmp_path / "out", "--rank", 8, fails=1)


class TestInterruption:
    @pytest.mark.parametrize("layer", [0, 1])
    def test_at_any_layer(
        self, run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: int
    ) -> None:
        solve, calls = LayerProblem.solve, []

        def interrupted(*arguments: object, **options: object) -> object:
            calls.append(1)
            if len(calls) > layer:
                raise KeyboardInterrupt
            return solve(*arguments, **options)

        monkeypatch.setattr(LayerProblem, "solve", interrupted)
        assert "Interrupted. Nothing was written." in run(model, tmp_path / "out", "--rank", 8, fails=1).stderr

    @pytest.mark.parametrize("restart", [False, True])
    def test_says_what_the_same_command_does_next(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool
    ) -> None:
        pytest.importorskip("accelerate", reason="the train extra is not installed")

        def stopped(trainer: Any, *_: object) -> None:
            raise KeyboardInterrupt

        def stopped_later(trainer: Any, *_: object) -> None:
            checkpoint = Path(trainer.args.output_dir) / "checkpoint-1"
            checkpoint.mkdir()
            (checkpoint / WHOLE).touch()
            raise KeyboardInterrupt

        options = ["--rank", "8", "--heal", "synthetic", "--heal-steps", "2"] + ["--restart"] * restart
        command = ["convert", *FAST, str(model), str(tmp_path / "out"), *options]
        monkeypatch.setattr("collab.training.run._train_or_resume", stopped)
        said = "No checkpoint was written yet. The same command begins anew."
        assert said in CliRunner().invoke(main, command).stderr
        monkeypatch.setattr("collab.training.run._train_or_resume", stopped_later)
        said = f"The same command{' without --restart' * restart} goes on from the last checkpoint."
        assert said in CliRunner().invoke(main, command).stderr

    def test_while_writing(self, run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("collab.io.write.verify", interrupted)
        run(model, tmp_path / "deep" / "out", "--rank", 8, fails=1)

    @pytest.mark.parametrize(
        "number", often([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], {"SIGTERM"}, lambda number: number.name)
    )
    def test_by_signal(self, demo_folder: Path, tmp_path: Path, number: signal.Signals) -> None:
        """In the middle of a solve that would take hours."""
        command = [sys.executable, "-m", "collab", "convert", str(demo_folder), str(tmp_path / "out")]
        options = ["--rank", "192", "--tolerance", "0", "--max-sweeps", "1000000", "-vv", "--calibration", "none"]
        process = subprocess.Popen(
            [*command, *options],
            stderr=subprocess.PIPE,
            text=True,
            # A background job's children ignore interruptions unless told otherwise.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "solving" in line:
                    break
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 1
        assert "Interrupted. Nothing was written." in stderr
        assert "Traceback" not in stderr
        assert list(tmp_path.iterdir()) == []
