"""A checkpoint that version 0.1.0 wrote, before names and modules of collab were changed.

`exported/bert-cp-0.1.0.json` holds what that version's model answered to two texts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reload import error_without_trust, outputs_without_collab
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification

import collab
from collab.io.read import read_json

FOLDER = Path(__file__).parent / "exported" / "bert-cp-0.1.0"


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

    def test_by_its_own_code(self, inputs: dict[str, Tensor], recorded: dict[str, Any], tmp_path: Path) -> None:
        job = {"folder": FOLDER, "auto_class": "AutoModelForSequenceClassification", "inputs": inputs}
        check(outputs_without_collab([job], tmp_path)[0]["logits"], recorded)

    def test_with_neither_it_names_the_cure(self, tmp_path: Path) -> None:
        assert "trust_remote_code=True" in error_without_trust(FOLDER, cache=tmp_path / "modules")


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
