"""Real checkpoints: the demo BERT, and an ALBERT whose one layer serves twelve passes."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from reload import outputs_without_collab
from tiny import often
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

import collab
from collab.decomposition import FORMS

SENTENCES = [
    "A man is playing a guitar.",
    "Two dogs run across a snowy field while their owner watches from the gate.",
    "No.",
    "The committee postponed its decision until the figures for the third quarter had been checked by the auditors.",
    "Where did you put the keys?",
    "Prices rose by 3.7% in May, the fastest in eleven years.",
    "She had never seen the sea, and now that it lay before her, grey and enormous, she had nothing to say.",
    "naïve café, façade, coöperation",
]


def sentences(shared: Path | None) -> list[str]:
    """Real sentences, of very different lengths: 64 if there are data."""
    if shared is None:
        return SENTENCES
    with (shared / "data" / "stsb" / "dev.csv").open(newline="", encoding="utf-8") as file:
        return [row[0] for row in csv.reader(file)][:64]


def hidden_states(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    """All layers' hidden states at the tokens that are not padding."""
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)
    return [states[inputs["attention_mask"].bool()] for states in outputs.hidden_states]


def largest(first: list[Tensor], second: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


class TestDemo:
    @pytest.mark.slow
    @pytest.mark.parametrize("form", often(FORMS, {"cp"}))
    def test_exact_at_full_rank_in_all_ways_of_loading(self, form: str, demo_folder: Path, tmp_path: Path) -> None:
        pytest.importorskip("sentence_transformers", reason="the demo extra is not installed")
        from sentence_transformers import SentenceTransformer

        text = sentences(None)
        embeddings = SentenceTransformer(str(demo_folder)).encode(text, convert_to_tensor=True)
        inputs = dict(AutoTokenizer.from_pretrained(demo_folder)(text, padding=True, return_tensors="pt"))
        expected = hidden_states(AutoModel.from_pretrained(demo_folder), inputs)
        output = tmp_path / form
        config = collab.ConversionConfig(rank=384, form=form, compare=False)
        collab.checkpoints.convert(str(demo_folder), output, config, calibration=collab.CalibrationRequest("none"))
        ids = AutoTokenizer.from_pretrained(output)(text, padding=True)["input_ids"]
        assert ids == inputs["input_ids"].tolist()
        assert largest(hidden_states(AutoModel.from_pretrained(output), inputs), expected) < 1e-5
        jobs: list[dict[str, Any]] = [
            {"folder": output, "auto_class": "AutoModel", "inputs": inputs},
            {"folder": output, "auto_class": "SentenceTransformer", "sentences": text},
        ]
        kept = inputs["attention_mask"].bool()
        states, embedded = outputs_without_collab(jobs, tmp_path)
        assert largest([states["last_hidden_state"][kept]], [expected[-1]]) < 1e-5
        assert largest([embedded["embeddings"]], [embeddings.cpu()]) < 1e-5

    def test_on_shared_sentences(self, demo_folder: Path, shared_data: Path) -> None:
        original = AutoModel.from_pretrained(demo_folder)
        tokenizer = AutoTokenizer.from_pretrained(demo_folder)
        inputs = dict(tokenizer(sentences(shared_data), padding=True, return_tensors="pt"))
        converted = collab.convert(original, collab.ConversionConfig(rank=384, compare=False)).model
        assert largest(hidden_states(converted, inputs), hidden_states(original, inputs)) < 1e-5

    @pytest.mark.slow
    def test_forms_by_faithfulness(self, demo_folder: Path) -> None:
        """At a third of the dimensions: Tucker is closer to the original than CP, CP than per-head SVD."""
        original = AutoModel.from_pretrained(demo_folder)
        inputs = dict(AutoTokenizer.from_pretrained(demo_folder)(SENTENCES, padding=True, return_tensors="pt"))
        expected = hidden_states(original, inputs)[-1]
        cosine, error = {}, {}
        for form in FORMS:
            conversion = collab.convert(original, collab.ConversionConfig(rank=128, form=form, compare=False))
            actual = hidden_states(conversion.model, inputs)[-1]
            cosine[form] = float(torch.cosine_similarity(actual, expected).mean())
            error[form] = sum(layer.error for layer in conversion.report.layers)
            assert all(layer.degeneracy < 3 for layer in conversion.report.layers)
        assert cosine["concat"] < cosine["cp"] < cosine["tucker"] < 1
        assert error["tucker"] < error["cp"] < error["concat"]


class TestALBERT:
    # The tokenizer that the checkpoint was trained with; its files alone do not describe it.
    TOKEN = re.compile(
        r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
    )

    @pytest.fixture
    def inputs(self, albert_folder: Path, shared_data: Path) -> dict[str, Tensor]:
        """8 real reactions, padded."""
        vocabulary = {
            token: number for number, token in enumerate((albert_folder / "vocab.txt").read_text().split("\n"))
        }
        with (shared_data / "data" / "reactions" / "reactions.csv").open(newline="") as file:
            reactions = [row["rxn"] for row in csv.DictReader(file)]
        tokens = [["[CLS]", *self.TOKEN.findall(reaction), "[SEP]"] for reaction in reactions]
        ids = [[vocabulary.get(token, vocabulary["[UNK]"]) for token in row] for row in tokens if len(row) <= 512][:8]
        longest = max(map(len, ids))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
        return {"input_ids": padded, "attention_mask": (padded != 0).long()}

    @pytest.mark.slow
    @pytest.mark.parametrize("form", often(FORMS, {"cp"}))
    def test_exact_at_full_rank(
        self, form: str, albert_folder: Path, inputs: dict[str, Tensor], tmp_path: Path
    ) -> None:
        report = collab.checkpoints.convert(
            str(albert_folder),
            tmp_path / "out",
            collab.ConversionConfig(rank=256, form=form, compare=False),
            calibration=collab.CalibrationRequest("none"),
        )
        assert len(report.report.layers) == 1, "twelve passes, one set of weights"
        original = AutoModelForMaskedLM.from_pretrained(albert_folder)
        expected = hidden_states(original, inputs)
        original.set_attn_implementation("eager")
        rounding = largest(hidden_states(original, inputs), expected)
        assert len(expected) == 13
        actual = hidden_states(AutoModelForMaskedLM.from_pretrained(tmp_path / "out"), inputs)
        assert largest(actual, expected) < max(1e-5, 2 * rounding)  # two other orders of the same sums
        assert "albert.pooler.weight" in _names(tmp_path / "out"), "what the language model does not use is kept"

    @pytest.mark.slow
    def test_without_collab(self, albert_folder: Path, inputs: dict[str, Tensor], tmp_path: Path) -> None:
        config = collab.ConversionConfig(rank=256, compare=False)
        collab.checkpoints.convert(
            str(albert_folder), tmp_path / "out", config, calibration=collab.CalibrationRequest("none")
        )
        with torch.no_grad():
            expected = AutoModelForMaskedLM.from_pretrained(albert_folder)(**inputs).logits
        job = {"folder": tmp_path / "out", "auto_class": "AutoModelForMaskedLM", "inputs": inputs}
        actual = outputs_without_collab([job], tmp_path)[0]["logits"]
        kept = inputs["attention_mask"].bool()
        assert float((actual - expected)[kept].abs().max()) < 1e-4 * float(expected.abs().max())


def _names(folder: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return set(file.keys())


@pytest.mark.slow
def test_report_is_readable(demo_folder: Path, tmp_path: Path) -> None:
    config = collab.ConversionConfig(rank=64, form="concat", refine="none", compare=False)
    request = collab.CalibrationRequest("none")
    collab.checkpoints.convert(str(demo_folder), tmp_path / "out", config, calibration=request)
    report = json.loads((tmp_path / "out" / "collab_report.json").read_text())
    assert report["parameters"]["model"]["before"] == 22_713_216
    assert [layer["name"] for layer in report["layers"]] == [f"encoder.layer.{i}.attention.self" for i in range(6)]
