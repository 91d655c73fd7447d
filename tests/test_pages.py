"""Pages of HTML: attention by head, and the history of a model."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from processes import run
from tiny import BERT, tiny_model
from transformers import BertForSequenceClassification, ViTConfig, ViTModel

import collab
from collab.io.history import record
from collab.steps.step import Step

NASTY = "a </script><b>bold</b> <!-- &amp;"


@pytest.fixture
def pruned(original: Path) -> Path:
    """A folder with a model without some heads, beside its original and rows of text."""
    (original.parent / "rows.txt").write_text("abc def\nxyz\nhello you\nmnop\n")
    collab.checkpoints.prune(
        str(original), original.parent / "pruned", collab.PruneOptions(keep={0: (1, 3), 1: (0, 1, 2, 3)})
    )
    return original.parent / "pruned"


def heads(folder: Path, *arguments: object) -> Any:
    return run("heads", folder, "--data", folder.parent / "rows.txt", "--score", "entropy", *arguments)


def page_data(page: Path) -> dict[str, Any]:
    """The numbers in a page, whose text ends where it should."""
    text = page.read_text(encoding="utf-8")
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, flags=re.DOTALL)
    assert len(scripts) == 2
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//|@import|url\(""", text), "needs a network"
    return json.loads(scripts[0])


class TestHeadsPage:
    def test_shows_both_models_and_what_was_pruned(self, pruned: Path, original: Path) -> None:
        page = pruned.parent / "heads.html"
        done = heads(pruned, "--html", page, "--against", original, "--sentence", NASTY, "--json")
        assert done.exit_code == 0, done.stderr
        data = page_data(page)
        assert [model["heads"] for model in data["models"]] == [[[0, 1, 2, 3]] * 2, [[1, 3], [0, 1, 2, 3]]]
        assert [model["totals"] for model in data["models"]] == [[4, 4]] * 2
        assert "(original)" in data["models"][0]["title"]
        first = data["models"][1]["maps"][0][0]
        weights = base64.b64decode(first["weights"])
        tokens = len(first["keys"])
        assert len(weights) == 2 * tokens**2
        rows = [sum(weights[start : start + tokens]) / 255 for start in range(0, len(weights), tokens)]
        assert rows == pytest.approx([1] * len(rows), abs=tokens / 255)
        printed = json.loads(done.stdout)
        assert list(printed["scores"]["entropy"].values()) == data["models"][1]["scores"]["entropy"]
        assert list(printed["against"]["scores"]["entropy"].values()) == data["models"][0]["scores"]["entropy"]

    def test_without_sentences_shows_the_first_rows(self, pruned: Path) -> None:
        page = pruned.parent / "heads.html"
        assert heads(pruned, "--html", page).exit_code == 0
        data = page_data(page)
        assert len(data["sentences"]) == 3
        assert len(data["models"]) == 1

    def test_is_bounded_and_says_so(self, original: Path, monkeypatch: pytest.MonkeyPatch, pruned: Path) -> None:
        from collab.figures import heads_page

        monkeypatch.setattr(heads_page, "SENTENCES", 2)
        monkeypatch.setattr(heads_page, "TOKENS", 5)
        page = original.parent / "heads.html"
        sentences = (argument for _ in range(3) for argument in ("--sentence", "a b c d e f g"))
        assert heads(original, "--html", page, *sentences).exit_code == 0
        text = page.read_text(encoding="utf-8")
        assert "first 2 of 3 sentences" in text
        assert "first 5 tokens" in text
        maps = page_data(page)["models"][0]["maps"]
        assert len(maps) == 2
        assert len(maps[0][0]["keys"]) == 5

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--html", "heads.html", "--sentence", " "), "A sentence is empty"),
            (("--html", "heads.txt"), "ends in .html"),
            (("--html", "nowhere/heads.html"), "there is no folder nowhere"),
            (("--html", "there.html"), "--overwrite"),
            (("--against", "original"), "--html"),
            (("--overwrite",), "--html"),
            (("--sentence", "a"), "--figures or --html"),
            (("--html", "heads.html", "--layer", "0", "--sentence", "a"), "--figures"),
            (("--html", "heads.html", "--against", "other"), "3 attention layers of 4 heads"),
        ],
    )
    def test_bad_input(
        self, pruned: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
    ) -> None:
        monkeypatch.chdir(pruned.parent)
        Path("there.html").write_text("mine")
        if "other" in arguments:
            other = tiny_model(BERT, BertForSequenceClassification, num_hidden_layers=3)
            other.save_pretrained("other")
            for file in Path("original").glob("*token*"):
                (Path("other") / file.name).write_bytes(file.read_bytes())
        done = heads(pruned, *arguments)
        assert done.exit_code != 0
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
        assert [path.name for path in Path().glob("*.html")] == ["there.html"]
        assert Path("there.html").read_text() == "mine"

    def test_a_compressed_model_stands_beside_its_original_without_the_dropped_layer(
        self, original: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "rows.txt").write_text("a b c d\nx y z\nh e l l o\nm n o p\n" * 10)
        request = collab.CalibrationRequest(collab.DataSource(str(tmp_path / "rows.txt")))
        config = collab.CompressionConfig(flops=0.4, drop_layers=1)
        collab.checkpoints.compress(str(original), tmp_path / "half", config, calibration=request, heal=None)
        pages = [tmp_path / "heads.html", tmp_path / "report.html"]
        done = heads(tmp_path / "half", "--html", pages[0], "--against", original)
        assert done.exit_code == 0, done.stderr
        data = page_data(pages[0])
        assert [layer is None for layer in data["models"][1]["heads"]].count(True) == 1
        assert None not in data["models"][0]["heads"]
        assert run("report", tmp_path / "half", "--html", pages[1]).exit_code == 0
        assert "dropped" in pages[1].read_text(encoding="utf-8")

    def test_an_exported_graph_is_refused(self, pruned: Path) -> None:
        (pruned / "model.onnx").touch()
        done = heads(pruned, "--html", pruned.parent / "heads.html")
        assert done.exit_code != 0
        assert "exported graph" in done.stderr

    def test_models_of_images_are_refused(self, tmp_path: Path) -> None:
        config = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8)
        checkpoint = collab.Checkpoint(ViTModel(config))
        from collab.heads.maps import sentence_features

        with pytest.raises(collab.errors.DataError, match="take text"):
            sentence_features(checkpoint, ["a"])


class TestReport:
    def test_prints_every_section(self, pruned: Path) -> None:
        done = run("report", pruned)
        assert done.exit_code == 0, done.stderr
        assert "6 of 8 heads are left" in done.stdout

    def test_page_shows_widths_and_escapes_the_card(self, pruned: Path) -> None:
        class Note(Step):
            kind, title = "note", "Note"

            def summary(self) -> str:
                return f"{NASTY} ![](https://elsewhere/picture.png) [x](javascript:alert(1))"

        record(pruned, Note(), name="pruned", command="collab note '<i>'")
        page = pruned.parent / "report.html"
        done = run("report", pruned, "--html", page)
        assert done.exit_code == 0, done.stderr
        text = page.read_text(encoding="utf-8")
        assert "2 of 4" in text
        assert "<b>bold" not in text
        assert "<script" not in text
        assert "<img" not in text
        assert 'href="javascript' not in text
        assert "collab note &#39;&lt;i&gt;&#39;" in text

    def test_widths_are_those_of_the_model(self, pruned: Path) -> None:
        report = collab.checkpoints.report(str(pruned))
        assert [(layer.heads, layer.total_heads) for layer in report.layers] == [(2, 4), (4, 4)]
        assert [layer.neurons for layer in report.layers] == [48, 48]
        assert json.loads(run("report", pruned, "--json").stdout)["layers"][0]["heads"] == 2

    def test_a_page_is_replaced_only_if_asked(self, pruned: Path) -> None:
        page = pruned.parent / "report.html"
        page.write_text("mine")
        refused = run("report", pruned, "--html", page)
        assert refused.exit_code == 1
        assert page.read_text() == "mine"
        assert run("report", pruned, "--html", page, "--overwrite").exit_code == 0
        assert page.read_text().startswith("<!doctype html>")

    def test_folders_without_history_are_refused(self, original: Path, tmp_path: Path) -> None:
        done = run("report", original)
        assert done.exit_code == 1
        assert "has no history" in done.stderr
        missing = run("report", tmp_path / "nowhere")
        assert missing.exit_code == 1
        assert "There is no folder" in missing.stderr
