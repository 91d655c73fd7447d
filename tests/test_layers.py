"""The attention layers of a model, what is recorded of their passes, and which tokens are padding."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tiny import BY_TYPE, Row, converted, every_layer, tiny_model
from transformers import PreTrainedModel

import collab
from collab.conversion.convert import install
from collab.models.families import collaborative_layers
from collab.models.inputs import probe_inputs
from collab.models.layers import attention_layers, native_layers
from collab.models.padding import seen_tokens, without_padding
from collab.models.recording import LayerPass, recording
from collab.models.states import eager_attention, in_float32
from collab.reparametrization.layer import factors_of


def hooks(model: PreTrainedModel) -> list[object]:
    every = [[*module._forward_hooks.values(), *module._forward_pre_hooks.values()] for module in model.modules()]
    return [hook for each in every for hook in each if hook.__module__.startswith("collab")]


def test_a_partly_converted_model_has_its_layers_in_order() -> None:
    native = tiny_model(BY_TYPE["bert"])
    names = [layer.name for layer in attention_layers(native)]
    partly, whole = copy.deepcopy(native), converted(native, 6)
    install(partly, names[0], factors_of(collaborative_layers(whole)[names[0]]))
    assert [(layer.name, layer.converted is None) for layer in attention_layers(partly)] == [
        (names[0], False),
        (names[1], True),
    ]
    assert list(native_layers(partly)) == names[1:]
    assert not native_layers(whole)


@every_layer
def test_a_layer_is_as_wide_converted_as_it_was(row: Row) -> None:
    native = tiny_model(row)
    model = collab.convert(native, collab.ConversionConfig(rank=1.0, form="concat", compare=False)).model
    for before, after in zip(attention_layers(native), attention_layers(model), strict=True):
        for name in ("name", "heads", "total", "head_dim", "full_rank", "kind", "rotary", "positions", "shares_values"):
            assert getattr(before, name) == getattr(after, name), name
        assert before.value_output_parameters == after.value_output_parameters


class TestRecording:
    @pytest.mark.parametrize("form", ["native", "cp"])
    def test_the_weights_of_the_values_are_the_context(self, form: str) -> None:
        """ALBERT applies each of its layers several times."""
        model = tiny_model(BY_TYPE["albert"])
        model = model if form == "native" else converted(model, 6)
        layers, passes = attention_layers(model), []
        recorded = recording(layers, passes.append, "values", "context", "weights")
        with torch.no_grad(), eager_attention(model), recorded:
            model(**probe_inputs(model), output_attentions=True)
        assert len(passes) == 8 == 2 * len(layers)
        for each in passes:
            values = each.values.unflatten(-1, (each.layer.total, -1)).transpose(1, 2)  # (B, H, S, d)
            context = (each.weights @ values).transpose(1, 2).flatten(2)
            torch.testing.assert_close(each.context, context)
            assert each.keys is each.queries
        assert not hooks(model)

    def test_an_exception_ends_the_run_and_removes_the_hooks(self) -> None:
        model, names = tiny_model(BY_TYPE["bert"]), []

        def visit(recorded: LayerPass) -> None:
            names.append(recorded.layer.name)
            raise StopIteration

        with pytest.raises(StopIteration), recording(attention_layers(model), visit, "context"):
            model(**probe_inputs(model))
        assert names == [attention_layers(model)[0].name]
        assert not hooks(model)


class TestPadding:
    states = torch.arange(24.0).view(4, 3, 2)

    @pytest.mark.parametrize("shape", [(4, 3), (2, 2, 3)])
    def test_choices_are_rows(self, shape: tuple[int, ...]) -> None:
        mask = torch.ones(shape, dtype=torch.long)
        mask[..., 2] = 0
        assert torch.equal(without_padding(self.states, mask), self.states[:, :2].flatten(0, 1))

    @pytest.mark.parametrize("shape", [(4, 5), (4, 1, 3, 3), (4, 1, 1, 3)])
    def test_masks_of_other_things_say_nothing(self, shape: tuple[int, ...]) -> None:
        """Those of a recording's samples, or of the scores."""
        assert seen_tokens(torch.zeros(shape), self.states) is None
        assert seen_tokens(None, self.states) is None
        assert without_padding(self.states, torch.zeros(shape)) is self.states


def test_float32_for_a_while_leaves_rotary_frequencies(shared_data: Path) -> None:
    model = collab.load(str(shared_data / "checkpoints" / "minilm-rotary")).model  # float16 but for its frequencies
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with in_float32(model):
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, before[name], rtol=0, atol=0)
