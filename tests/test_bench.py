"""Measuring: what was asked for is measured, in turn, and what cannot be is refused."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from click.testing import Result
from processes import run
from tiny import (
    BERT,
    BY_TYPE,
    Row,
    converted,
    every_head_of_few_kinds,
    few_kinds,
    random_model,
    save_with_tokenizer,
    tiny_model,
)

import collab
from collab.errors import CheckpointError, OutOfMemoryError
from collab.evaluation.compare import compare
from collab.evaluation.timing import Spread, time_in_turn
from collab.evaluation.worker import Worker
from collab.models.inputs import input_kind, random_inputs, takes_waveforms

FEW = collab.BenchOptions(batch_sizes=(2, 1, 2), lengths=(4, 8), rounds=3, device="cpu")


class TestTiming:
    def test_in_turn_and_backwards(self) -> None:
        """The slower model is the slower one, whichever begins, and each call follows the other's."""
        calls: list[str] = []

        def model(name: str, seconds: float) -> Callable[..., None]:
            def call(**batch: torch.Tensor) -> None:
                calls.append(name)
                time.sleep(seconds)

            return call

        batches = [{"input_ids": torch.zeros(1, 1)}] * 2
        runs = [(model("a", 0.02), batches), (model("b", 0.06), batches)]
        for backwards in (False, True):
            first, second = time_in_turn(runs, backwards=backwards)
            assert 0.04 <= first < second
            assert second >= 0.12
        assert "".join(calls) == "ababbaba"

    def test_spread(self) -> None:
        assert Spread.of([5, 1, 2, 3, 4]) == Spread(median=3, low=2, high=4)


class TestModels:
    @few_kinds
    def test_two_of_every_kind_of_layer(self, row: Row) -> None:
        native = tiny_model(row)
        images = input_kind(native) != "text" and not takes_waveforms(native)
        unit = {"audio": "recordings"}.get(input_kind(native), input_kind(native)) if images else "tokens"
        options = replace(FEW, lengths=None if images else (4, 8))
        report = collab.bench([converted(native), native], options)
        assert [setting.batch_size for setting in report.settings] == ([1, 2] if images else [1, 1, 2, 2])
        assert [setting.length for setting in report.settings] == ([None] * 2 if images else [4, 8] * 2)
        assert report.unit == unit
        for setting in report.settings:
            first, second = (seconds.median for seconds in setting.seconds)
            assert setting.ratio.median == pytest.approx(second / first)
            assert setting.per_second[0] == pytest.approx(setting.batch_size * (setting.length or 1) / first)
            assert all(0 < seconds.low <= seconds.median <= seconds.high for seconds in setting.seconds)
        assert [model.parameters for model in report.models] == [
            sum(parameter.numel() for parameter in model.parameters()) for model in (converted(native), native)
        ]

    @every_head_of_few_kinds
    def test_inputs_for_every_head(self, row: object, native_class: type[transformers.PreTrainedModel]) -> None:
        model = random_model(native_class, row.config())
        inputs = random_inputs(model, 3, 7)
        assert inputs.get("attention_mask", torch.ones(1)).all()
        assert len(inputs[model.main_input_name]) == 3
        with torch.no_grad():
            model(**inputs)

    def test_tokens_count_without_a_mask_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("collab.evaluation.compare.rounds_in_turn", lambda *_, **__: [[1.0, 1.0]] * 3)
        model = collab.Checkpoint(tiny_model(BERT))
        for names in (["input_ids"], ["input_ids", "attention_mask"]):
            features = [dict.fromkeys(names, [1] * 16)] * 4
            assert compare(model, model, features)["tokens_per_second"]["model"] == 64

    def test_one_model_is_left_as_it_is(self) -> None:
        model = tiny_model(BERT).train()
        seen: list[tuple[int, int | None]] = []
        report = collab.bench(
            [model], replace(FEW, dtype="bfloat16"), progress=lambda what, done, total: seen.append((done, total))
        )
        assert model.training
        assert model.dtype == torch.float32
        assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
        assert all(setting.ratio is None for setting in report.settings)
        assert report.dtype == "bfloat16"
        assert report.models[0].memory is None
        json.dumps(report.to_dict())

    def test_lengths_are_clipped_with_a_message(self) -> None:
        report = collab.bench([tiny_model(BERT)], replace(FEW, lengths=None, rounds=1))
        assert [setting.length for setting in report.settings if setting.batch_size == 1] == [32, 40]
        assert report.notes == ("BertModel takes 40 tokens at most, so that was measured instead of longer rows.",)

    def test_the_dtype_is_that_of_the_arithmetic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dtypes = set()
        forward = transformers.BertModel.forward

        def watched(self: transformers.BertModel, *given: object, **named: object) -> object:
            output = forward(self, *given, **named)
            dtypes.add(output.last_hidden_state.dtype)
            return output

        monkeypatch.setattr(transformers.BertModel, "forward", watched)
        collab.bench([tiny_model(BERT)], replace(FEW, dtype="bfloat16"))
        assert dtypes == {torch.bfloat16}

    @pytest.mark.exhaustive
    def test_compiled(self) -> None:
        options = replace(FEW, batch_sizes=(1,), lengths=(4,), compile=True)
        report = collab.bench([tiny_model(BERT, num_hidden_layers=1)], options)
        assert report.compiled
        assert report.settings[0].seconds[0].median < 1  # compiling was not timed

    def test_too_little_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for failure in (
            torch.OutOfMemoryError("CUDA out of memory"),
            MemoryError(),
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        ):
            forward = transformers.BertModel.forward

            def fail(self: object, *given: object, _as: object = (failure, forward), **named: object) -> object:
                if named["input_ids"].shape == (2, 8):
                    raise _as[0]
                return _as[1](self, *given, **named)

            with monkeypatch.context() as patch:
                patch.setattr(transformers.BertModel, "forward", fail)
                with pytest.raises(collab.errors.OutOfMemoryError, match="too little memory for 2 rows of 8 tokens"):
                    collab.bench([tiny_model(BERT)], FEW)

    def test_memory_that_really_runs_out(self) -> None:
        """More than any machine has: torch refuses at once, before a byte is touched."""
        with pytest.raises(collab.errors.OutOfMemoryError, match="for 4000000000000 rows of 32 tokens"):
            collab.bench([tiny_model(BERT)], replace(FEW, batch_sizes=(4_000_000_000_000,), lengths=(32,)))


class TestBadInput:
    def test_models_that_do_not_go_together(self) -> None:
        with pytest.raises(collab.errors.ConfigurationError, match="inputs of different kinds"):
            collab.bench([tiny_model(BERT), tiny_model(BY_TYPE["vit"])], FEW)
        images = [tiny_model(BY_TYPE["vit"], image_size=size) for size in (16, 32)]
        with pytest.raises(collab.errors.ConfigurationError, match="different sizes"):
            collab.bench(images, replace(FEW, lengths=None))
        with pytest.raises(collab.errors.ConfigurationError, match="not 3"):
            collab.bench([tiny_model(BERT)] * 3, FEW)

    def test_the_shorter_model_limits(self) -> None:
        models = [tiny_model(BERT), tiny_model(BERT, max_position_embeddings=12)]
        with pytest.raises(collab.errors.ConfigurationError, match="short takes 12 tokens at most, so length 20"):
            collab.bench(models, replace(FEW, lengths=(4, 20)), names=["long", "short"])

    @pytest.mark.parametrize(
        "values",
        [
            {"batch_sizes": (0,)},
            {"batch_sizes": ()},
            {"lengths": (0,)},
            {"lengths": ()},
            {"rounds": 0},
            {"dtype": "fp8"},
            {"device": "tpu"},
        ],
    )
    def test_options(self, values: dict) -> None:
        with pytest.raises(collab.errors.ConfigurationError):
            replace(FEW, **values)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_no_gpu(self) -> None:
        with pytest.raises(collab.errors.DeviceError, match="No device 'cuda' here"):
            collab.bench([tiny_model(BERT)], replace(FEW, device="cuda"))


def short_decoder() -> transformers.PreTrainedModel:
    """An encoder–decoder whose encoder takes 40 tokens and whose decoder 16."""
    encoder = BERT.config()
    decoder = BERT.config(is_decoder=True, add_cross_attention=True, max_position_embeddings=16)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id = config.pad_token_id = 0
    return transformers.EncoderDecoderModel(config).eval()


class TestCommand:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> tuple[Path, Path]:
        """An original and its conversion."""
        tiny_model(BERT).save_pretrained(tmp_path / "original")
        config = collab.ConversionConfig(rank=8, compare=False)
        calibration = collab.CalibrationRequest("none")
        collab.checkpoints.convert(str(tmp_path / "original"), tmp_path / "converted", config, calibration=calibration)
        return tmp_path / "converted", tmp_path / "original"

    def run(self, *arguments: object, fails: int = 0) -> Result:
        result = run("bench", *arguments)
        assert result.exit_code == fails, result.output
        assert "Traceback" not in result.output
        return result

    @pytest.mark.slow
    def test_tables_and_figure(self, folders: tuple[Path, Path], tmp_path: Path) -> None:
        converted, original = folders
        arguments = ("--batch-size", 2, "--length", 8, "--rounds", 2, "--device", "cpu", "--no-memory")
        figure = tmp_path / "speed.png"
        shown = self.run(converted, "--against", original, *arguments, "--figure", figure).stdout
        for text in ("tokens/s", "ratio", "quartiles of 2 rounds", "CollabBertModel", "BertModel"):
            assert text in " ".join(shown.split()), text
        assert figure.stat().st_size > 10_000
        assert {path.name for path in tmp_path.iterdir()} == {"original", "converted", "speed.png"}

    @pytest.mark.slow
    def test_json(self, folders: tuple[Path, Path], tmp_path: Path) -> None:
        """Without --against only the model is measured, whatever its report names."""
        arguments = ("--length", 8, "--rounds", 2, "--device", "cpu", "--json")
        report = json.loads(self.run(folders[0], *arguments).stdout)
        assert [entry["name"] for entry in report["models"]] == [str(folders[0])]
        model = report["models"][0]
        assert model["file_bytes"] == (folders[0] / "model.safetensors").stat().st_size
        assert model["memory"]["peak_bytes"] > model["memory"]["libraries_bytes"] > 50e6
        assert report["memory_at"] == [8, 8]
        assert [setting["batch_size"] for setting in report["settings"]] == [1, 8]
        without = json.loads(self.run(folders[0], *arguments, "--no-memory").stdout)
        assert without["models"][0]["memory"] is None

    def test_images(self, tmp_path: Path) -> None:
        tiny_model(BY_TYPE["vit"]).save_pretrained(tmp_path / "vit")
        arguments = ("--rounds", 2, "--device", "cpu", "--no-memory")
        shown = self.run(tmp_path / "vit", *arguments, "--figure", tmp_path / "speed.svg").stdout
        assert "images/s" in shown
        assert "length" not in shown
        assert "images per second" in (tmp_path / "speed.svg").read_text()
        assert "do not apply" in self.run(tmp_path / "vit", "--length", 8, fails=2).stderr

    @pytest.mark.exhaustive
    def test_graphs_of_images_in_another_precision(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A graph runs as it is, and on the CPU, whatever else there is."""
        pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
        tiny_model(BY_TYPE["vit"]).save_pretrained(tmp_path / "vit")
        collab.checkpoints.export(str(tmp_path / "vit"), tmp_path / "graph")
        cuda = torch.device("cuda")
        module = importlib.import_module("collab.checkpoints.bench")  # which a function of that name hides
        monkeypatch.setattr(module, "resolve_device", lambda name: cuda if name is None else torch.device(name))
        arguments = ("--rounds", 1, "--batch-size", 1, "--no-memory", "--dtype", "bfloat16", "--json")
        report = json.loads(self.run(tmp_path / "graph", "--against", tmp_path / "vit", *arguments).stdout)
        assert [model["precision"] for model in report["models"]] == ["float32", "bfloat16"]
        refused = self.run(tmp_path / "graph", "--device", "cuda", "--rounds", 1, fails=2)
        assert "measured on a CPU" in " ".join(refused.stderr.split())

    def test_torch_is_the_default(self, folders: tuple[Path, Path]) -> None:
        arguments = ("--rounds", 1, "--batch-size", 1, "--length", 8, "--no-memory", "--device", "cpu", "--json")
        for options in ((), ("--runtime", "torch")):
            report = json.loads(self.run(folders[0], *options, "--dtype", "bfloat16", *arguments).stdout)
            assert report["dtype"] == "bfloat16"

    def test_models_whose_rows_must_end_or_be_short(self) -> None:
        """A classifier on an encoder–decoder reads where a row ends; a decoder may take fewer tokens."""
        options = replace(FEW, lengths=(32,), batch_sizes=(2,))
        for model in (tiny_model(BY_TYPE["bart"], transformers.BartForSequenceClassification), short_decoder()):
            assert collab.bench([model], options).settings[0].length == 32

    def test_a_classifier_takes_the_token_for_padding_of_its_tokenizer(self, tmp_path: Path) -> None:
        """And is refused where there is none, as it finds the last token of a row by that."""
        row = BY_TYPE["llama"]
        classifier = random_model(transformers.LlamaForSequenceClassification, row.config(pad_token_id=None))
        folder = save_with_tokenizer(classifier, tmp_path / "model")
        arguments = ("--rounds", 1, "--device", "cpu", "--no-memory", "--batch-size", 2, "--length", 8)
        assert "tokens/s" in self.run(folder, *arguments).stdout
        assert collab.load(str(folder)).model.config.pad_token_id == 0
        for path in folder.glob("*token*"):
            path.unlink()
        (folder / "vocab.txt").unlink(missing_ok=True)
        assert "Set pad_token_id in its config.json" in " ".join(self.run(folder, *arguments, fails=1).stderr.split())

    def test_bad_input(self, folders: tuple[Path, Path], tmp_path: Path) -> None:
        converted = folders[0]
        for options, message, code in (
            (["--length", 41], "takes 40 tokens at most", 2),
            (["--length", 0], "at least 1 token", 2),
            (["--batch-size", 0], "at least 1", 2),
            (["--rounds", 0], "at least 1", 2),
            (["--dtype", "fp8"], "fp8", 2),
            (["--runtime", "onnxruntime", "--dtype", "bfloat16"], "is for models that run in PyTorch", 2),
            (["--against", tmp_path / "missing"], "no folder", 1),
            (["--figure", tmp_path / "no" / "speed.png"], "no folder", 1),
            (["--figure", tmp_path / "speed.txt"], ".png, .pdf or .svg", 2),
        ):
            assert message in self.run(converted, *options, fails=code).stderr.replace("\n", " "), options
        assert "no folder" in self.run(tmp_path / "missing", fails=1).stderr

    def test_a_process_that_fails_is_said(
        self, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("collab.evaluation.worker.sys.executable", "/bin/false")
        arguments = ("--batch-size", 1, "--length", 8, "--rounds", 1, "--device", "cpu")
        assert "Peak memory was not measured" in self.run(folders[0], *arguments).stdout

    def test_a_process_that_says_much_or_is_killed(
        self, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        program = tmp_path / "program"
        for then, kind, message in (
            ("exit 1", CheckpointError, "ended: yyyy"),
            ("kill -9 $$", OutOfMemoryError, "was killed"),
        ):
            program.write_text(f"#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' y >&2\n{then}\n")
            program.chmod(0o755)
            monkeypatch.setattr("collab.evaluation.worker.sys.executable", str(program))
            with pytest.raises(kind, match=message), Worker(str(folders[0])) as worker:
                worker.wait()

    def test_a_process_that_is_killed_is_out_of_memory(
        self, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        killed = tmp_path / "killed"
        killed.write_text("#!/bin/sh\nkill -9 $$\n")
        killed.chmod(0o755)
        monkeypatch.setattr("collab.evaluation.worker.sys.executable", str(killed))
        arguments = ("--batch-size", 3, "--length", 8, "--rounds", 1, "--device", "cpu")
        assert "too little memory for 3 rows of 8 tokens" in self.run(folders[0], *arguments, fails=1).stderr
