"""Graphs of models that write text: the tokens are those that `generate` writes in PyTorch, greedily and with beams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from processes import run
from reload import run_without_collab
from test_composite import composite
from test_encoder_decoder import generator_of
from tiny import (
    BY_TYPE,
    DECODERS,
    PAIRS,
    SEQ2SEQ,
    Row,
    converted,
    often,
    random_model,
    random_text,
    save_tokenizer,
    save_with_tokenizer,
    tiny_model,
)
from transformers import AutoModelForCausalLM, BartModel, BertLMHeadModel, PreTrainedModel

import collab
from collab.errors import CheckpointError, ConfigurationError, UnsupportedArchitectureError
from collab.models.inputs import probe_inputs

onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytest.importorskip("onnxscript", reason="the onnx extra is not installed")

pytestmark = pytest.mark.slow
FORMS = ("cp", "tucker", "concat")
FLOAT = collab.ExportOptions()
COLUMNS = ("--text-column", "en", "--text-column", "de")


def served(model: PreTrainedModel, folder: Path, options: collab.ExportOptions = FLOAT) -> PreTrainedModel:
    """A model's graphs as a model."""
    model.save_pretrained(folder / "model")
    collab.checkpoints.export(str(folder / "model"), folder / "out", options)
    return collab.checkpoints.load_exported(folder / "out").model


def sources_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Two sources, or prompts, one of them padded."""
    if "decoder_input_ids" not in (inputs := probe_inputs(model)):
        return random_text(2, 9, left=True)
    return {name: value for name, value in inputs.items() if not name.startswith("decoder")}


def tokens(model: Any, sources: dict[str, torch.Tensor], **how: Any) -> list[list[int]]:
    model.generation_config.max_length = None  # Whisper's is set, and would clash
    return model.generate(**sources, **{"max_new_tokens": 7, "do_sample": False} | how).tolist()


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted translator in ``model`` and its graphs in ``out``, int8 too, by the command."""
    folder = tmp_path_factory.mktemp("writing")
    model = converted(generator_of(BY_TYPE["marian"], decoder_layers=1, encoder_layers=1), 9, "cp")
    model.generation_config.forced_bos_token_id = 11
    model.generation_config.max_length = 20
    model.save_pretrained(folder / "model")
    save_tokenizer(folder / "model")
    (folder / "pairs.tsv").write_text("en\tde\n" + "".join(f"{source}\t{target}\n" for source, target in PAIRS[:16]))
    rows = ("--calibration", folder / "pairs.tsv", *COLUMNS)
    done = run("export", folder / "model", folder / "out", "--format", "onnx", "--int8", *rows, "--json")
    assert done.exit_code == 0, done.output
    (folder / "record.json").write_text(done.stdout)
    return folder


class TestTranslator:
    def test_the_same_tokens(self, translator: Path) -> None:
        model = collab.load(str(translator / "model")).model
        graph = collab.checkpoints.load_exported(translator / "out" / "decoder_with_past_model.onnx").model
        sources = sources_of(model)
        for how in ({}, {"num_beams": 4}, {"num_beams": 2, "no_repeat_ngram_size": 1}, {"use_cache": False}):
            expected = tokens(model, sources, **how)
            assert tokens(graph, sources, **how) == expected
            assert all(row[1] == 11 for row in expected)  # as its generation config, which is carried over, says
        started = {"decoder_input_ids": torch.tensor([[2, 7, 9], [2, 8, 5]])}
        assert tokens(graph, sources | started) == tokens(model, sources | started)
        masked = started | {"decoder_attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])}
        with pytest.raises(ConfigurationError, match="without padding"):
            tokens(graph, sources | masked)

    def test_a_key_is_shared_in_the_cache(self, translator: Path) -> None:
        graph = onnx.load(str(translator / "out" / "decoder_with_past_model.onnx")).graph
        sizes = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
        for part in ("decoder", "encoder"):
            key, value = (sizes[f"past_key_values.0.{part}.{role}"] for role in ("key", "value"))
            assert (key[1].dim_value, key[3].dim_value) == (1, 9 + 4)  # R, and a content bias for each head
            assert (value[1].dim_value, value[3].dim_value) == (4, 8)
        weights = {len(weight.dims) for weight in graph.initializer if "encoder_attn.key" in weight.name}
        assert not weights  # which are in the encoder's graph

    def test_report(self, translator: Path) -> None:
        record = json.loads((translator / "record.json").read_text())
        assert record["inputs"] == ["input_ids", "attention_mask", "encoder_attention_mask"]
        assert record["outputs"] == ["last_hidden_state", "logits"]
        assert record["cache"] == [f"0.{part}.{role}" for part in ("decoder", "encoder") for role in ("key", "value")]
        names = ["encoder_model", "decoder_with_past_model"]
        assert list(record["bytes"]) == [f"{name}{end}.onnx" for end in ("", "_quantized") for name in names]
        for name in names:
            assert record["verification"][f"{name}.onnx"]["largest_difference"] < 1e-4
            assert record["verification"][f"{name}_quantized.onnx"]["lowest_cosine"] > 0.98
        assert record["agreement"]["top1"] > 0.5
        assert set(ModelCard.load(translator / "out" / "README.md").data.tags) >= {"onnx"}

    def test_evaluate_and_bench(self, translator: Path) -> None:
        rows = ("--data", translator / "pairs.tsv", "--task", "translation", *COLUMNS)
        divergences = []
        for graph in ("", "decoder_with_past_model.onnx"):  # of the folder that in int8
            done = run("evaluate", translator / "out" / graph, *rows, "--against", translator / "model", "--json")
            assert done.exit_code == 0, done.output
            divergences.append(json.loads(done.stdout)["against"]["agreement"]["kl"])
        assert divergences[1] < 1e-6 < divergences[0]
        sizes = ("--batch-size", "2", "--length", "8", "--rounds", "2", "--no-memory")
        done = run("bench", translator / "out", *sizes, "--json")
        assert done.exit_code == 0, done.output

    @pytest.mark.exhaustive
    def test_card_runs_where_collab_is_not(self, translator: Path, tmp_path: Path) -> None:
        card = ModelCard.load(translator / "out" / "README.md").text
        code = card.split("```python\n")[2].partition("```")[0].replace("FOLDER", str(translator / "out"))
        assert "decoder_with_past_model_quantized.onnx" in code
        code = code.replace("_quantized", "")
        code = f"import sys; sys.modules['collab'] = None\n{code}\nprint(tokens.tolist())\n"
        done = run_without_collab(code, cache=tmp_path / "modules")
        assert done.returncode == 0, done.stderr
        loaded = collab.load(str(translator / "model"))
        loaded.model.generation_config.forced_bos_token_id = None
        batch = loaded.tokenizer(["a sentence"], return_tensors="pt", return_token_type_ids=False)
        expected = tokens(loaded.model, batch, max_new_tokens=20)
        assert json.loads(done.stdout.splitlines()[-1]) == expected


def compressed_for_onnxruntime(folder: Path, *budget: object) -> Any:
    """What `collab compress` says of a translator that onnxruntime is to run."""
    save_with_tokenizer(generator_of(BY_TYPE["marian"], decoder_layers=1, encoder_layers=1), folder / "original")
    (folder / "pairs.tsv").write_text("en\tde\n" + "".join(f"{source}\t{target}\n" for source, target in PAIRS[:16]))
    rows = ("--calibration", folder / "pairs.tsv", *COLUMNS, "--heal-steps", 0)
    return run("compress", folder / "original", folder / "out", *budget, *rows, "--runtime", "onnxruntime")


def test_the_speed_of_writing_in_a_runtime_is_no_budget(tmp_path: Path) -> None:
    done = compressed_for_onnxruntime(tmp_path, "--speedup", 1.2)
    assert done.exit_code == 2
    assert "writes text" in done.stderr


@pytest.mark.exhaustive
def test_compress_writes_graphs_and_does_not_time_them(tmp_path: Path) -> None:
    done = compressed_for_onnxruntime(tmp_path, "--step-bytes", 0.7)
    assert done.exit_code == 0, done.output
    assert f"Wrote {tmp_path / 'out-onnxruntime'}." in done.stdout.replace("\n", "")
    assert (tmp_path / "out-onnxruntime" / "decoder_with_past_model.onnx").is_file()


@pytest.mark.exhaustive
def test_openvino_in_int8(tmp_path: Path) -> None:
    """The weights alone are int8, and no rows are needed."""
    pytest.importorskip("openvino", reason="the openvino extra is not installed")
    pytest.importorskip("nncf", reason="the openvino extra is not installed")
    model = converted(causal("gpt2", n_layer=1), 8, "tucker")
    graph = served(model, tmp_path, collab.ExportOptions("openvino", "int8"))
    assert {path.name for path in (tmp_path / "out").glob("openvino*")} == {"openvino_model.xml", "openvino_model.bin"}
    report = json.loads((tmp_path / "out" / "collab_report.json").read_text())["history"][-1]
    assert 1e-6 < report["verification"]["openvino_model.xml"]["mean_difference"] < 0.1
    sources = random_text(2, 9, left=True)
    assert np.array(tokens(graph, sources, num_beams=2)).shape == (2, 16)


def causal(model_type: str, **changes: Any) -> PreTrainedModel:
    row = BY_TYPE[model_type]
    return random_model(AutoModelForCausalLM._model_mapping[row.config_class], row.config(**changes))


def of_families(rows: Sequence[Row], *always: str) -> list[Any]:
    """The numbers of families; those that are not always tested, because tracing takes long, are `exhaustive`."""
    return often(range(len(rows)), {*always}, lambda number: rows[number].model_type)


@pytest.mark.parametrize("number", of_families(SEQ2SEQ))
def test_every_encoder_decoder(number: int, tmp_path: Path) -> None:
    native = generator_of(SEQ2SEQ[number])
    model = converted(native, 7, FORMS[number % 3]) if number % 4 else native
    check_tokens(model, served(model, tmp_path, collab.ExportOptions("openvino") if number % 2 else FLOAT))


@pytest.mark.parametrize("number", of_families(DECODERS))
def test_every_decoder(number: int, tmp_path: Path) -> None:
    native = causal(DECODERS[number].model_type)  # that of Mistral in windows of six tokens
    model = converted(native, 8, FORMS[number % 3]) if number % 4 else native
    check_tokens(model, served(model, tmp_path, FLOAT if number % 2 else collab.ExportOptions("openvino")))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("encoder", "form"), [("bert", "cp"), ("vit", "concat")])
def test_models_made_of_two(encoder: str, form: str, tmp_path: Path) -> None:
    model = converted(composite(encoder, "roberta"), 7, form)
    check_tokens(model, served(model, tmp_path))


def check_tokens(model: PreTrainedModel, graph: PreTrainedModel) -> None:
    sources = sources_of(model)
    for beams in (1, 4):
        assert tokens(graph, sources, num_beams=beams) == tokens(model, sources, num_beams=beams)


@pytest.mark.exhaustive
def test_positions_that_are_not_given_are_those_of_the_model(tmp_path: Path) -> None:
    """RoBERTa and its descendants count from the padding's number on, and not the padding."""
    model = causal("roberta", is_decoder=True, num_hidden_layers=1)
    graph = served(model, tmp_path)
    ids, mask = random_text(2, 9, left=True).values()
    ids = ids.masked_fill(mask == 0, model.config.pad_token_id)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits
    actual = graph(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-4)


def test_what_is_refused(tmp_path: Path) -> None:
    tiny_model(BY_TYPE["bart"], BartModel).save_pretrained(tmp_path / "headless")
    with pytest.raises(UnsupportedArchitectureError, match="no head to write with"):
        collab.checkpoints.export(str(tmp_path / "headless"), tmp_path / "out")
    crossing = tiny_model(BY_TYPE["bert"], BertLMHeadModel, is_decoder=True, add_cross_attention=True)
    crossing.save_pretrained(tmp_path / "crossing")
    with pytest.raises(UnsupportedArchitectureError, match="not part of it"):
        collab.checkpoints.export(str(tmp_path / "crossing"), tmp_path / "out")
    with pytest.raises(CheckpointError, match="holds no graph"):
        collab.checkpoints.load_exported(tmp_path / "crossing")
    assert not (tmp_path / "out").exists()
