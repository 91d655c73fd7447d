"""Linear layers of few rows, while large models write."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import DECODERS, SEQ2SEQ, Row, converted, random_text, state, tiny_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from collab.modeling import collab_few_rows
from collab.modeling.collab_few_rows import FEW_ROWS, linear_of_few_rows

WRITERS = [row for row in DECODERS + SEQ2SEQ if row.model_type in ("gpt2", "llama", "marian", "t5")]


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Models of any size compute so, on any machine; the numbers of rows of what was computed so."""
    rows: list[int] = []
    compute = collab_few_rows._in_halves

    def noted(states: Tensor, *weights: Any) -> Tensor:
        rows.append(states.shape[:-1].numel())
        return compute(states, *weights)

    monkeypatch.setattr(collab_few_rows, "LARGE", 0)
    monkeypatch.setattr(collab_few_rows, "SMALL", 0)
    monkeypatch.setattr(collab_few_rows, "_halves_are_faster", lambda: True)
    monkeypatch.setattr(collab_few_rows, "_in_halves", noted)
    return rows


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(24,), (1, 1, 24), (FEW_ROWS, 1, 24), (2, FEW_ROWS, 24), (0, 24)])
def test_a_layer_of_few_rows_is_the_layer(shape: tuple[int, ...], bias: bool, halves: list[int]) -> None:
    layer, states = nn.Linear(24, 10, bias=bias), torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(linear_of_few_rows(layer, states), layer(states))
    rows = states.shape[:-1].numel()
    assert halves == [rows] * (0 < rows <= FEW_ROWS)


def test_what_is_not_plain_is_left_to_the_layer(halves: list[int]) -> None:
    layer, states = nn.Linear(24, 10), torch.randn(1, 24)
    linear_of_few_rows(layer, states).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        linear_of_few_rows(layer.double(), states.double())
        linear_of_few_rows(layer.bfloat16(), states.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            assert linear_of_few_rows(layer.float(), states).dtype == torch.bfloat16
    assert not halves


@pytest.mark.parametrize("row", WRITERS, ids=lambda row: row.model_type)
def test_large_models_write_the_same_by_them(row: Row, halves: list[int], tmp_path: Path) -> None:
    """And copies compute with their own weights."""
    auto = AutoModelForCausalLM if row in DECODERS else AutoModelForSeq2SeqLM
    native = tiny_model(row, auto._model_mapping[type(row.config())])
    model = converted(native, 1.0, "concat", refine="none").eval()
    text = random_text(1, 6)
    written = _written(model, text)
    assert halves
    assert max(halves) <= FEW_ROWS
    twin = copy.deepcopy(model)
    for layer in model.modules():
        vars(layer).pop("forward", None)
    halves.clear()
    assert torch.equal(_written(model, text), written)
    assert not halves
    assert state(twin).keys() == state(model).keys()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(_written(twin, text), written)
    assert halves


def _written(model: PreTrainedModel, text: dict[str, Tensor]) -> Tensor:
    return model.generate(**text, do_sample=False, num_beams=2, min_new_tokens=4, max_new_tokens=4)  # type: ignore[operator]


def test_encoders_and_small_models_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    small = converted(tiny_model(WRITERS[0]))
    monkeypatch.setattr(collab_few_rows, "LARGE", 0)
    monkeypatch.setattr(collab_few_rows, "SMALL", 0)
    seq2seq = next(row for row in WRITERS if row.model_type == "marian")
    encoder = converted(tiny_model(seq2seq)).get_encoder()
    for model in (small, encoder):
        assert not any("forward" in vars(layer) for layer in model.modules())


def test_the_faster_way_is_measured() -> None:
    assert collab_few_rows._halves_are_faster() in (False, True)
