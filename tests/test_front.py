"""What a user reads first: help, messages, and what a folder says of the model in it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from reload import run_without_collab
from tiny import BERT, BY_TYPE, save_with_tokenizer, tiny_model
from transformers import AutoConfig, AutoTokenizer, T5EncoderModel

import collab
from collab.cli import main
from collab.evaluation.embedding import Embedder
from collab.io.card import source_metadata

EMBEDDER = "---\nlicense: mit\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\ntags:\n"
EMBEDDER += "- sentence-transformers\n- sentence-similarity\n- mine\n---\n# Embedder\n\nIt maps sentences to vectors.\n"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedder, converted; rows of a table without a header."""
    folder = tmp_path_factory.mktemp("front")
    model = save_with_tokenizer(tiny_model(BERT), folder / "embedder")
    (model / "README.md").write_text(EMBEDDER)
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    )
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "config_sentence_transformers.json").write_text("{}")
    (folder / "rows.tsv").write_text("good\t1\nbad\t0\n" * 32)
    collab.checkpoints.convert(
        str(model), folder / "converted", collab.ConversionConfig(rank=16, refine="none", compare=False)
    )
    return folder


def run(*arguments: object, fails: int = 0) -> str:
    """What a command prints."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == fails, result.output
    return result.output if fails else result.stdout


@pytest.mark.exhaustive
def test_an_embedder_of_t5_loads_with_its_own_attention(tmp_path: Path) -> None:
    """sentence-transformers knows its config's kind, and would load the native class with weights at random."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    native = tiny_model(BY_TYPE["t5"], T5EncoderModel)
    first = Transformer(str(save_with_tokenizer(native, tmp_path / "t5")))
    embedder = SentenceTransformer(modules=[first, Pooling(first.get_embedding_dimension())], device="cpu")
    embedder.save(str(tmp_path / "embedder"))
    texts = ["a b c", "d e f g h"]
    expected = embedder.encode(texts)
    config = collab.ConversionConfig(rank=1.0, compare=False)
    none = collab.CalibrationRequest("none")
    collab.checkpoints.convert(str(tmp_path / "embedder"), tmp_path / "converted", config, calibration=none)
    code = (
        "import json, sys; from sentence_transformers import SentenceTransformer as S\n"
        "model = S(sys.argv[1], device='cpu', trust_remote_code=True)\n"
        "print(json.dumps(model.encode(json.loads(sys.argv[2])).tolist()))"
    )
    done = run_without_collab(code, str(tmp_path / "converted"), json.dumps(texts), cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        SentenceTransformer(str(tmp_path / "converted"), device="cpu")
    embedded = Embedder(collab.load(str(tmp_path / "converted"))).embed(texts)  # which runs no code of the folder
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    assert embedded == pytest.approx(expected / lengths, abs=1e-4)
    graph = collab.checkpoints.export(str(tmp_path / "converted"), tmp_path / "graph")
    assert not (tmp_path / "graph" / "collab_sentence.py").exists(), graph
    collab.checkpoints.expand(str(tmp_path / "converted"), tmp_path / "native")
    assert not (tmp_path / "native" / "collab_sentence.py").exists()
    assert SentenceTransformer(str(tmp_path / "native"), device="cpu").encode(texts) == pytest.approx(
        expected, abs=1e-4
    )


@pytest.mark.parametrize("which", ["embedder", "converted"])
def test_an_embedder_becomes_a_classifier(here: Path, tmp_path: Path, which: str) -> None:
    """Neither pooling nor tags nor text of the embedder stay with a model whose output is logits."""
    rows = ("--train", here / "rows.tsv", "--eval", here / "rows.tsv", "--text-column", 0, "--label-column", 1)
    run("finetune", here / which, tmp_path / "tuned", "--task", "classification", *rows, "--steps", 1)
    tuned = tmp_path / "tuned"
    for name in ("1_Pooling", "modules.json", "config_sentence_transformers.json"):
        assert not (tuned / name).exists()
    header, card = source_metadata(tuned), (tuned / "README.md").read_text()
    assert header["pipeline_tag"] == "text-classification"
    assert header["library_name"] == "transformers"
    assert not {"sentence-transformers", "sentence-similarity"} & set(header["tags"])
    assert "mine" in header["tags"]
    assert header["license"] == "mit"
    assert "AutoModelForSequenceClassification.from_pretrained" in card
    assert "SentenceTransformer" not in card
    assert "maps sentences" not in card


def test_a_converted_embedder_stays_one(here: Path) -> None:
    assert (here / "converted" / "1_Pooling" / "config.json").is_file()
    header = source_metadata(here / "converted")
    assert header["pipeline_tag"] == "sentence-similarity"
    assert "sentence-transformers" in header["tags"]
    assert "base_model" not in header  # a folder's name is no Hub id


def test_a_card_says_what_was_done_and_nothing_else(here: Path, tmp_path: Path) -> None:
    """Only models whose heads share dimensions are called collaborative, and only narrower ones of low rank."""
    run("prune", here / "embedder", tmp_path / "pruned", "--keep", "0:0", "--no-speed")
    concat = ("--rank", 16, "--form", "concat", "--calibration", "none", "--no-speed")
    run("convert", here / "embedder", tmp_path / "concat", *concat)
    run("expand", tmp_path / "concat", tmp_path / "native")
    said = {
        here / "converted": ("embedder, collaborative", "shared by all heads", {"collaborative-attention", "low-rank"}),
        tmp_path / "concat": ("embedder, with narrower heads", "narrower queries and keys", {"low-rank"}),
        tmp_path / "pruned": ("embedder, pruned", "changes nothing but rounding", set()),
        tmp_path / "native": ("native", "converted by collab and then written in its native class", set()),
    }
    for folder, (title, text, tags) in said.items():
        card = (folder / "README.md").read_text()
        assert f"\n# {title}\n" in card
        assert text in card
        assert {"collaborative-attention", "low-rank"} & set(source_metadata(folder)["tags"]) == tags
        assert ("shared by all heads" in card) == ("collaborative-attention" in tags)
    shown = run("inspect", tmp_path / "pruned")
    assert "It was made from" in shown
    assert "pruned" in shown
    assert "converted" not in shown
    assert "None" not in shown


def test_the_base_model_is_carried(here: Path, tmp_path: Path) -> None:
    run("prune", here / "embedder", tmp_path / "pruned", "--keep", "0:0", "--no-speed", "--base-model", "me/embedder")
    assert source_metadata(tmp_path / "pruned")["base_model"] == "me/embedder"
    run("expand", tmp_path / "pruned", tmp_path / "native")
    assert source_metadata(tmp_path / "native")["base_model"] == "me/embedder"
    refused = run("expand", tmp_path / "pruned", tmp_path / "no", "--base-model", "../pruned", fails=2)
    assert "not a Hub id" in refused


@pytest.mark.exhaustive
def test_tokenizers_load_from_a_graphs_folder_without_a_word(
    here: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="the onnx extra is not installed")
    run("export", here / "converted", tmp_path / "graph", "--format", "onnx")
    card = (tmp_path / "graph" / "README.md").read_text()
    assert "converted by collab" in card
    assert "embeddings = (outputs[0] * mask)" in card
    assert AutoConfig.from_pretrained(tmp_path / "graph").model_type == "bert"
    caplog.clear()
    capfd.readouterr()
    AutoTokenizer.from_pretrained(tmp_path / "graph")
    assert not caplog.records
    assert not "".join(capfd.readouterr())
    shown = json.loads(run("inspect", tmp_path / "graph", "--json"))
    assert [layer["form"] for layer in shown["layers"]] == ["cp"] * len(shown["layers"])


def test_inspect_says_what_is_narrower(here: Path, tmp_path: Path) -> None:
    budget = ("--flops", 0.6, "--heal-steps", 0, "--calibration", "synthetic", "--calibration-samples", 16)
    run("compress", here / "embedder", tmp_path / "half", *budget, "--no-speed")
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    shown = run("inspect", tmp_path / "half")
    assert "neurons" in shown
    widths = config["collab_feed_forward"] or [config["intermediate_size"]]
    for width in widths:
        assert f"{width} of {config['intermediate_size']}" in shown
    assert "compressed" in shown
    header, card = source_metadata(tmp_path / "half"), (tmp_path / "half" / "README.md").read_text()
    assert "compressed" in header["tags"]
    fewer = [layer for layer in config["collab_layers"] if layer["rank"] < config["hidden_size"]]
    assert ("low-rank" in header["tags"]) == bool(fewer) == ("narrower queries and keys" in card)
    assert "Then:" not in shown
    narrower = any(layer.get("value_width") for layer in config["collab_layers"])
    assert ("Values and the output projection are as wide" in shown) is not narrower


class TestMessages:
    def test_budget(self, here: Path, tmp_path: Path) -> None:
        message = run("compress", here / "embedder", tmp_path / "no", fails=2)
        for option in ("--flops 0.5", "--params 0.5", "--speedup 1.8"):
            assert option in message

    def test_no_header(self, here: Path) -> None:
        message = run("evaluate", here / "embedder", "--data", here / "rows.tsv", fails=1)
        assert "--text-column 0 --text-column 1 for pairs, and --label-column 2" in message

    def test_json_has_no_numbers_that_it_lacks(self, here: Path, tmp_path: Path) -> None:
        """Such as the rank correlation of the scores of a single head."""
        save_with_tokenizer(tiny_model(BERT, num_hidden_layers=1, num_attention_heads=1), tmp_path / "one")
        scores = ["--score", "confidence", "--score", "entropy", "--json"]
        printed = run("heads", tmp_path / "one", "--data", "synthetic", "--samples", 8, *scores)
        record = json.loads(printed, parse_constant=pytest.fail)
        assert record["correlations"]["confidence"]["entropy"] is None

    def test_given_twice(self, here: Path) -> None:
        rows = ["--data", here / "rows.tsv"]
        assert "--data is given twice" in run("evaluate", here / "embedder", *rows, *rows, fails=2)

    def test_no_file(self, here: Path) -> None:
        message = run("evaluate", here / "embedder", "--data", here / "missing.tsv", fails=1)
        assert "There is no file" in message
        assert "Hub" not in message

    def test_foreign_folder(self, here: Path, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "notes.txt").write_text("mine")
        message = run("convert", here / "embedder", tmp_path / "mine", "--rank", 8, fails=1)
        assert "collab did not write it" in message
        assert "--overwrite" not in message


def test_help_is_ordered_and_whole() -> None:
    text = run("--help")
    order = [text.index(f"\n  {name} ") for name in ("plan", "compress", "convert", "heal", "evaluate", "expand")]
    assert order == sorted(order)
    assert "..." not in text.replace("[ARGS]...", "")
    sections = run("convert", "--help")
    places = [sections.index(f"\n{name}:") for name in ("Options", "Data", "Healing", "Output", "Expert")]
    assert places == sorted(places)
