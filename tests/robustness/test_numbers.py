"""Numbers at the edge: each converts to a result whose report is finite and true, or is refused."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import BERT, in_pairs, save_with_tokenizer, tiny_model
from torch import Tensor
from transformers import PreTrainedModel

import collab
from collab.decomposition import FORMS
from collab.errors import CollabError
from collab.models.families import collaborative_layers
from collab.reparametrization.layer import factors_of
from collab.reparametrization.model import LayerProblems

every_form = pytest.mark.parametrize("form", FORMS)


def model_with(change: Callable[[str, Tensor], None], **settings: Any) -> PreTrainedModel:
    """A tiny model whose queries and keys are changed."""
    model = tiny_model(BERT, **settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".query." in name or ".key." in name:
                change(name, parameter)
    return model


def numbers(value: Any) -> Iterator[float]:
    """Every number in a report."""
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def check(model: PreTrainedModel, conversion: collab.Conversion) -> None:
    """That all is finite, and that the error of each layer is that of the weights in the converted model."""
    report = conversion.report
    assert all(map(math.isfinite, numbers(json.loads(report.to_json()))))
    assert all(tensor.isfinite().all() for tensor in conversion.model.state_dict().values())
    tolerance = 1e-4 if model.dtype == torch.float32 else 2e-2
    assert [layer.error for layer in report.layers] == pytest.approx(
        true_errors(model, conversion), rel=1e-3, abs=tolerance
    )


def true_errors(model: PreTrainedModel, conversion: collab.Conversion) -> list[float]:
    """The error of each layer's weights in the converted model, computed anew."""
    problems = LayerProblems(model, None, torch.device("cpu"))
    errors = []
    for layer in conversion.report.layers:
        problem, factors = problems[layer.name], factors_of(collaborative_layers(conversion.model)[layer.name])
        with torch.no_grad():
            errors.append(float(factors.to(problem.tensor.query).relative_error(problem.tensor)))
    return errors


def config(form: str, rank: int = 8) -> collab.ConversionConfig:
    return collab.ConversionConfig(rank=rank, form=form, refine="none", compare=False)  # type: ignore[arg-type]


@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_precision(form: str, dtype: torch.dtype) -> None:
    model = tiny_model(BERT).to(dtype)
    check(model, collab.convert(model, config(form)))


@every_form
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_weights_of_another_scale(form: str, scale: float) -> None:
    model = model_with(lambda name, tensor: tensor.mul_(scale))
    check(model, collab.convert(model, config(form)))


@every_form
def test_weights_of_another_scale_are_as_faithful(form: str) -> None:
    errors = [
        collab.convert(model_with(lambda name, tensor: tensor.mul_(scale)), config(form)).report.layers[0].error  # noqa: B023
        for scale in (1e-6, 1.0, 1e6)
    ]
    assert errors == pytest.approx([errors[1]] * 3, rel=1e-3)


@every_form
@pytest.mark.parametrize("scale", [1e4, 1e6])
def test_what_float16_cannot_hold_is_refused(form: str, scale: float) -> None:
    model = model_with(lambda name, tensor: tensor.copy_((tensor * scale).clamp(-6e4, 6e4))).half()
    with pytest.raises(collab.errors.WeightsError, match="does not fit float16"):
        collab.convert(model, config(form))


def test_a_content_bias_that_float16_cannot_hold_is_refused_by_reparametrize() -> None:
    model = tiny_model(BERT).encoder.layer[0].attention.self
    with torch.no_grad():
        model.query.bias.fill_(6e4)
        model.key.weight.fill_(30.0)
    query, key = (projection.half() for projection in (model.query, model.key))
    with pytest.raises(collab.errors.WeightsError, match=r"content_bias.* does not fit float16"):
        collab.reparametrize(query.weight, query.bias, key.weight, num_heads=4, rank=8)


@every_form
@pytest.mark.parametrize("left", [0, 1, 3])
def test_heads_of_low_rank(form: str, left: int) -> None:
    """Down to none: layers without any query or key."""

    def change(name: str, tensor: Tensor) -> None:
        tensor[left:] = 0  # the first rows belong to the first head

    model = model_with(change)
    check(model, collab.convert(model, config(form)))


ROWS_THAT_SAY_LITTLE = {
    "one token": ["a"] * 8,
    "the same row": ["a b c"] * 8,
    "padding only": ["[PAD] [PAD]"] * 8,
    "two rows of one token": ["a", "b"],
    "a special token": ["[CLS]"] * 4,
    "empty rows": [""] * 8,
}


@in_pairs("form", FORMS, "kind", [*ROWS_THAT_SAY_LITTLE])
def test_rows_that_say_little(form: str, kind: str, tmp_path: Path) -> None:
    """Constant inputs, rows of one token, rows of padding: converted with a finite report, or refused."""
    folder = save_with_tokenizer(tiny_model(BERT), tmp_path / "model")
    model = collab.load(str(folder))
    conversion = None
    with contextlib.suppress(CollabError):
        rows = ROWS_THAT_SAY_LITTLE[kind]
        calibration = collab.calibrate(collab.Checkpoint(model.model, model.tokenizer), rows)
        conversion = collab.convert(
            model.model, collab.ConversionConfig(rank=8, form=form, compare=False, refine=2), calibration=calibration
        )
    if conversion is not None:
        assert all(map(math.isfinite, numbers(json.loads(conversion.report.to_json()))))
        assert all(tensor.isfinite().all() for tensor in conversion.model.state_dict().values())
