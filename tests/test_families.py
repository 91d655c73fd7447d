"""Every family and every head: exact at full rank, and a transformers model like any other."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassClassValidationError
from tiny import (
    BERT,
    BY_TYPE,
    DECODERS,
    ROWS,
    SEQ2SEQ,
    Row,
    by_layers,
    converted,
    every_family,
    every_family_and_form,
    every_form,
    every_head,
    every_kind,
    every_kind_and_form,
    few_kinds,
    full_rank,
    largest_difference,
    of_seen,
    often,
    random_model,
    relative_difference,
    taking_turns,
    tiny_model,
)
from transformers import AutoModel, AutoModelForSeq2SeqLM, DynamicCache, PreTrainedModel, StaticCache
from transformers.models.auto import modeling_auto

import collab
from collab.decomposition import FORMS
from collab.modeling.collab_attention import CollaborativeAttention
from collab.models.families import collaborative_layers, families
from collab.models.inputs import probe_inputs
from collab.models.padding import output_mask
from collab.models.states import eager_attention, set_dropout


def is_text(row: Row) -> bool:
    return row.family.base.main_input_name == "input_ids"


NOT_CONVERTED = {
    "whisper": ("WhisperForCausalLM",),
    "t5": ("T5ForSequenceClassification", "T5ForQuestionAnswering"),
    "mt5": ("MT5ForSequenceClassification", "MT5ForQuestionAnswering"),
    "marian": ("MarianForCausalLM",),
    "bart": ("BartForCausalLM", "BartForSequenceClassification", "BartForQuestionAnswering"),
    "mbart": ("MBartForCausalLM", "MBartForSequenceClassification", "MBartForQuestionAnswering"),
    "pegasus": ("PegasusForCausalLM",),
    "qwen2": ("JevForDecision",),
    "umt5": ("UMT5ForSequenceClassification", "UMT5ForQuestionAnswering"),
    "splinter": ("SplinterForPreTraining",),
    "videomae": ("VideoMAEForPreTraining",),
}
"""Classes around any model, decoders without their encoder or of another width, answers about a whole text by its last
token, and one that takes marked questions."""


YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 20}

TEXT_FAMILIES = [row for row in ROWS if is_text(row)]


def test_a_row_for_every_family() -> None:
    composites = {"encoder-decoder", "vision-encoder-decoder"}  # which tests/test_composite.py has
    assert set(BY_TYPE) | composites == set(families())
    assert all(family.native_model_type == model_type for model_type, family in families().items())


@pytest.mark.slow
def test_a_family_is_imported_when_it_is_asked_for() -> None:
    """By the type of its models, or by importing its file, after which Auto classes know its models."""
    code = """
import sys
import collab.models.families
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
native = [name for name in sys.modules if name.startswith("transformers.models.") and ".modeling_" in name]
assert native == ["transformers.models.auto.modeling_auto"], native
tiny = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 9}
config = AutoConfig.for_model("collab_bert", **tiny)
assert type(AutoModel.from_config(config)).__module__ == "collab.modeling.collab_bert"
from collab.modeling.collab_electra import CollabElectraConfig
assert type(AutoModelForMaskedLM.from_config(CollabElectraConfig(**tiny))).__name__ == "CollabElectraForMaskedLM"
assert "collab.modeling.collab_roberta" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_class_derived_from_a_main_model_adds_no_others() -> None:
    """As torch derives one from every class that it shards."""
    base = BY_TYPE["bert"].family.base
    versions = dict(base.versions)
    derived = type("Derived", (base,), {"__module__": __name__})
    assert derived.config_class is base.config_class
    assert base.versions == versions
    assert not any(name.startswith("CollabBert") for name in globals())


def test_a_prefix_that_is_wrong_is_named() -> None:
    family = BY_TYPE["bert"].family
    kind = family.base.__mro__[1]
    with pytest.raises(AttributeError, match="no attribute 'BretSelfAttention'"):
        type("CollabBretModel", (kind, transformers.BertModel), {"native_prefix": "Bret"})


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("spatial", [True, False])
def test_biases_of_places_on_a_page(relative: bool, spatial: bool) -> None:
    """The native layer adds those of places only beside those of positions."""
    config = {"has_relative_attention_bias": relative, "has_spatial_attention_bias": spatial}
    native = tiny_model(BY_TYPE["layoutlmv3"], **config)
    inputs = probe_inputs(native) | {"bbox": torch.randint(0, 100, (2, 8, 1)) + torch.tensor([0, 0, 5, 9])}
    model = converted(native, full_rank(native))
    assert largest_difference(native(**inputs), model(**inputs)) < 1e-5


@every_family
def test_every_task_head_of_transformers(row: Row) -> None:
    """Whatever an Auto class loads for the native config has a collaborative version."""
    for name, auto_class in vars(modeling_auto).items():
        mapping = getattr(auto_class, "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None and row.config_class in mapping:
            natives = mapping[row.config_class]
            for native in natives if isinstance(natives, tuple | list) else (natives,):
                if native.__name__ in NOT_CONVERTED.get(row.model_type, ()):
                    continue
                assert row.family.collaborative_class(native) is not None, f"{name} loads {native.__name__}"


@every_head
def test_classes_are_found_by_name(row: Row, native_class: type[PreTrainedModel]) -> None:
    """Exports name their classes in `auto_map`; the classes are derived, not written out."""
    model_class = row.family.collaborative_class(native_class)
    assert model_class.__name__ == f"Collab{native_class.__name__}"
    assert getattr(row.family.module, model_class.__name__) is model_class
    for derived in (model_class, model_class.config_class):
        assert pickle.loads(pickle.dumps(derived)) is derived
        assert inspect.getfile(derived) == row.family.module.__file__
    assert model_class.config_class.model_type == f"collab_{native_class.config_class.model_type}"


@every_family_and_form
def test_exact_at_full_rank(row: Row, form: str) -> None:
    check_exact(row, row.family.base.native_class(), form)


@every_head
def test_every_head_exact_at_full_rank_and_ties_stay_ties(row: Row, native_class: type[PreTrainedModel]) -> None:
    native, model = check_exact(row, native_class, "cp")
    assert count_tied(native) == count_tied(model)


def count_tied(model: PreTrainedModel) -> int:
    """The number of names of parameters that are another's, too."""
    return len(list(model.named_parameters(remove_duplicate=False))) - len(list(model.parameters()))


def check_exact(row: Row, native_class: type[PreTrainedModel], form: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    native = random_model(native_class, row.config())
    model = converted(native, full_rank(native), form)
    assert type(model) is row.family.collaborative_class(native_class)
    inputs = probe_inputs(native)
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            outputs = (of_seen(each(**inputs), inputs) for each in (native, model))
            assert relative_difference(*outputs) < 5e-6
    return native, model


@every_kind_and_form
def test_reduced_rank_runs_the_same_in_every_kernel(row: Row, form: str) -> None:
    model = converted(tiny_model(row), 13, form)
    inputs = probe_inputs(model)
    outputs = []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            outputs.append(model(**inputs))
    assert largest_difference(*outputs) < 1e-5


@taking_turns(TEXT_FAMILIES, "form", {form: form for form in FORMS})
def test_padding_does_not_leak(row: Row, form: str) -> None:
    model = converted(tiny_model(row), 13, form).double()  # in which rounding of deep sums is no leak
    tokens = torch.randint(2, 60, (1, 9))
    padded = torch.cat([tokens, torch.full((1, 4), 1)], dim=1)
    mask = torch.cat([torch.ones(1, 9, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long)], dim=1)
    written = {"decoder_input_ids": tokens} if row in SEQ2SEQ else {}
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            alone = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), **written).last_hidden_state
            beside = model(input_ids=padded, attention_mask=mask, **written).last_hidden_state[:, :9]
        assert float((alone - beside).abs().max()) < 1e-5, implementation


@every_kind_and_form
def test_attentions_and_hidden_states_are_recorded(row: Row, form: str) -> None:
    native = tiny_model(row)
    model = converted(native, full_rank(native), form)
    inputs = probe_inputs(native)
    asked = {"output_attentions": True, "output_hidden_states": True}
    with torch.no_grad(), eager_attention(native):  # WavLM's returns the mean of the heads without it
        expected = native(**inputs, **asked)
    names = [name for name in expected if name.endswith(("attentions", "hidden_states")) and expected[name]]
    assert len(names) == (5 if row in SEQ2SEQ else 2)
    for implementation in ("eager", "sdpa"):
        if implementation == "sdpa" and row.model_type in ("layoutlmv3", "gpt2", "videomae"):
            continue  # the native model does not tell its layers that attentions are wanted
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            actual = model(**inputs, **asked)
        for name in names:
            assert len(actual[name]) == len(expected[name]) > 0
            for states in zip(actual[name], expected[name], strict=True):
                torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)


@few_kinds
def test_attentions_are_recorded_though_the_original_was_asked_before(row: Row) -> None:
    """Transformers installs its recording hooks once, on the modules that are there at the time."""
    native = tiny_model(row)
    native.set_attn_implementation("eager")
    inputs = probe_inputs(native)
    native(**inputs, output_attentions=True)
    for inplace in (False, True):
        model = collab.convert(native, collab.ConversionConfig(rank=8, compare=False), inplace=inplace).model
        output = model(**inputs, output_attentions=True)
        names = ("encoder_attentions", "decoder_attentions", "cross_attentions") if row in SEQ2SEQ else ("attentions",)
        assert all(len(output[name]) > 0 for name in names)


@every_kind_and_form
def test_trains(row: Row, form: str) -> None:
    model = converted(tiny_model(row), 13, form).train()
    inputs = probe_inputs(model)
    model(**inputs).last_hidden_state.square().mean().backward()
    for name, parameter in model.named_parameters():
        layer = any(part in name for part in (".query.", ".key.", ".mixing", ".content_bias."))
        if layer:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


@few_kinds
def test_gradient_checkpointing(row: Row) -> None:
    model = converted(tiny_model(row), 13).train()
    if not model.supports_gradient_checkpointing:
        pytest.skip(f"transformers has no gradient checkpointing for {row.model_type}")
    inputs = probe_inputs(model)
    gradients = []
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        with set_dropout(model, 0.0):
            model(**inputs).last_hidden_state.square().mean().backward()
        with_gradient = {name: weight for name, weight in model.named_parameters() if weight.grad is not None}
        gradients.append({name: weight.grad.clone() for name, weight in with_gradient.items()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name])


@few_kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_checkpoints_stay_narrow(row: Row, dtype: torch.dtype) -> None:
    native = tiny_model(row)
    with torch.no_grad():
        expected = native(**probe_inputs(native)).last_hidden_state
        narrow = native.to(dtype)
        rounding = float((narrow(**probe_inputs(narrow)).last_hidden_state.float() - expected).abs().max())
        model = converted(narrow, full_rank(native))
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        inputs = probe_inputs(model)
        actual = model(**inputs).last_hidden_state.float()
    mask = output_mask(inputs)
    seen = ... if mask is None else mask.bool()
    assert float((actual - expected)[seen].abs().max()) < 3 * rounding + 1e-2


@pytest.mark.parametrize("row", often(TEXT_FAMILIES, {row.model_type for row in by_layers(TEXT_FAMILIES)}))
def test_embeddings_resize(row: Row) -> None:
    model = converted(tiny_model(row), 8)
    model.resize_token_embeddings(70)
    assert model.get_input_embeddings().weight.shape[0] == model.config.vocab_size == 70
    with torch.no_grad():
        written = {"decoder_input_ids": torch.tensor([[65, 3]])} if row in SEQ2SEQ else {}
        model(input_ids=torch.tensor([[65, 69, 3]]), **written)


@pytest.mark.parametrize("tied", [True, False])
def test_untied_embeddings_stay_untied(tied: bool, tmp_path: Path) -> None:
    row = BY_TYPE["bert"]
    native = random_model(transformers.BertForMaskedLM, row.config(tie_word_embeddings=tied))
    model = converted(native, 32)
    model.save_pretrained(tmp_path)
    reloaded = type(model).from_pretrained(tmp_path)
    inputs = probe_inputs(native)
    with torch.no_grad():
        assert largest_difference(native(**inputs), reloaded(**inputs)) < 1e-5
    same = reloaded.get_output_embeddings().weight is reloaded.get_input_embeddings().weight
    assert same is tied


class TestALBERT:
    """One set of weights, used many times."""

    def test_each_set_of_weights_is_solved_once(self) -> None:
        row = BY_TYPE["albert"]
        one_group = tiny_model(row, num_hidden_groups=1, inner_group_num=1)
        report = collab.convert(one_group, collab.ConversionConfig(rank=8)).report
        assert len(report.layers) == 1
        several = collab.convert(tiny_model(row), collab.ConversionConfig(rank=[4, 8, 12, 16])).report
        assert [layer.rank for layer in several.layers] == [4, 8, 12, 16]


class TestPositionBiases:
    """What layers add to the scores by position."""

    @every_form
    @pytest.mark.parametrize("stable", [False, True])
    @pytest.mark.filterwarnings("ignore:Support for mismatched")  # of the native layer's two masks
    def test_wavlm_with_padding(self, form: str, stable: bool) -> None:
        native = tiny_model(BY_TYPE["wavlm"], do_stable_layer_norm=stable, feat_extract_norm="layer")
        inputs = probe_inputs(native)
        inputs["attention_mask"] = torch.ones_like(inputs["input_values"], dtype=torch.long)
        inputs["attention_mask"][1, inputs["input_values"].shape[1] // 2 :] = 0
        model = converted(native, 32, form)
        with torch.no_grad():
            unpadded = native(inputs["input_values"]).last_hidden_state
            expected = native(**inputs).last_hidden_state
            for implementation in ("eager", "sdpa"):
                model.set_attn_implementation(implementation)
                torch.testing.assert_close(model(**inputs).last_hidden_state, expected, rtol=1e-4, atol=1e-5)
        assert float((unpadded - expected)[1].abs().max()) > 1e-3

    def test_wavlm_itself_returns_the_mean_of_the_heads_weights(self) -> None:
        native = tiny_model(BY_TYPE["wavlm"])
        inputs = probe_inputs(native) | {"output_attentions": True}
        with torch.no_grad():
            expected, actual = native(**inputs).attentions, converted(native, 32)(**inputs).attentions
        for mean, weights in zip(expected, actual, strict=True):
            assert float((weights - mean).abs().max()) > 1e-2
            torch.testing.assert_close(weights.mean(1, keepdim=True).expand_as(mean), mean, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("model_type", ["beit", "data2vec-vision"])
    @pytest.mark.parametrize(("own", "shared"), [(False, False), (True, False), (False, True), (True, True)])
    def test_images(self, model_type: str, own: bool, shared: bool) -> None:
        biases = {"use_relative_position_bias": own, "use_shared_relative_position_bias": shared}
        native = tiny_model(BY_TYPE[model_type], **biases)
        inputs = probe_inputs(native)
        model = converted(native, 32)
        with torch.no_grad():
            for implementation in ("eager", "sdpa"):
                model.set_attn_implementation(implementation)
                assert largest_difference(native(**inputs), model(**inputs)) < 1e-5


_MASKED = {"apply_spec_augment": True, "mask_time_prob": 0.5, "mask_time_length": 2, "mask_time_min_masks": 1}


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("beit", {"drop_path_rate": 0.5}),
        ("data2vec-vision", {"drop_path_rate": 0.5}),
        ("dinov2", {"drop_path_rate": 0.5}),
        ("bart", {"activation_dropout": 0.5}),
        ("wav2vec2", _MASKED),
        ("hubert", _MASKED),
    ],
)
def test_without_dropout_all_is_kept(model_type: str, changes: dict[str, Any]) -> None:
    """Branches, activations, and spans of recordings."""
    model = converted(tiny_model(BY_TYPE[model_type], **changes), 8)
    inputs = probe_inputs(model)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        model.train()
        assert any(float((model(**inputs).last_hidden_state - expected).abs().max()) > 1e-3 for _ in range(5))
        with set_dropout(model, 0.0):
            torch.testing.assert_close(model(**inputs).last_hidden_state, expected)


@pytest.mark.parametrize("model_type", ["wav2vec2", "sew", "wavlm"])
def test_without_dropout_no_layer_is_dropped(model_type: str) -> None:
    model = converted(tiny_model(BY_TYPE[model_type], layerdrop=0.9), 8)
    inputs = probe_inputs(model)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        model.train()
        with set_dropout(model, 0.0):
            for _ in range(5):
                torch.testing.assert_close(model(**inputs).last_hidden_state, expected)
    assert model.config.layerdrop == 0.9


@pytest.mark.parametrize("model_type", ["t5", "umt5"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_every_layer_has_the_kernel_that_was_asked_for(model_type: str, implementation: str, tmp_path: Path) -> None:
    native_class = AutoModelForSeq2SeqLM._model_mapping[BY_TYPE[model_type].config_class]
    converted(tiny_model(BY_TYPE[model_type], native_class), 8).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation=implementation)
    assert {layer.config._attn_implementation for layer in collaborative_layers(model).values()} == {implementation}


class TestDecoders:
    """Causal, with caches, with cross-attention."""

    @taking_turns(
        (BERT, *DECODERS, *(BY_TYPE[name] for name in ("roberta", "xlm-roberta", "camembert", "electra"))),
        "form",
        {form: form for form in FORMS},
        {"electra", "gpt2", "llama", "opt"},
    )
    def test_generation_with_a_cache(self, row: Row, form: str) -> None:
        native_class = transformers.AutoModelForCausalLM._model_mapping[row.config_class]
        of_bert = {} if row in DECODERS else {"is_decoder": True}
        native = random_model(native_class, row.config(**of_bert, eos_token_id=None))
        prompt = torch.tensor([[1, 1, 5, 9], [5, 9, 11, 7]])
        given = {"attention_mask": (prompt != 1).long(), "max_new_tokens": 8, "do_sample": False}
        for rank in (32, 13):
            model = converted(native, rank, form)
            for implementation in ("eager", "sdpa"):
                model.set_attn_implementation(implementation)
                plain = model.generate(prompt, use_cache=False, **given)
                for cache in ("dynamic", "static"):
                    assert torch.equal(model.generate(prompt, cache_implementation=cache, **given), plain)
                if rank == 32:
                    assert torch.equal(native.generate(prompt, use_cache=False, **given), plain)

    @every_form
    @pytest.mark.parametrize(
        ("model_type", "changes"),
        [
            ("llama", {"rope_parameters": YARN}),
            ("mistral", {}),
            ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
        ],
    )
    def test_a_text_in_pieces_is_the_whole_text(self, model_type: str, changes: dict[str, Any], form: str) -> None:
        """With scaled rotary positions, and longer than the windows of layers."""
        row = BY_TYPE[model_type]
        native_class = transformers.AutoModelForCausalLM._model_mapping[row.config_class]
        native = random_model(native_class, row.config(**changes))
        model = converted(native, full_rank(native), form)
        tokens, mask = torch.randint(4, 60, (2, 20)), torch.ones(2, 20, dtype=torch.long)
        mask[1, :4] = 0
        seen = mask.bool()
        for implementation in ("eager", "sdpa"):
            model.set_attn_implementation(implementation)
            caches = DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=24)
            with torch.no_grad():
                whole = native(tokens, attention_mask=mask).logits[seen]
                for cache in caches:
                    pieces = [
                        model(tokens[:, a:b], attention_mask=mask[:, :b], past_key_values=cache).logits
                        for a, b in ((0, 8), (8, 15), (15, 16), (16, 20))
                    ]
                    torch.testing.assert_close(torch.cat(pieces, dim=1)[seen], whole, rtol=1e-4, atol=1e-5)

    @every_form
    def test_cross_attention(self, form: str) -> None:
        config = BY_TYPE["bert"].config(is_decoder=True, add_cross_attention=True)
        native = random_model(transformers.BertLMHeadModel, config)
        native.set_attn_implementation("eager")
        result = collab.convert(native, collab.ConversionConfig(rank=32, form=form))
        assert len(result.report.layers) == 4
        inputs = probe_inputs(native) | {"output_attentions": True}
        with torch.no_grad():
            expected, actual = native(**inputs), result.model(**inputs)
        assert largest_difference({"logits": expected.logits}, {"logits": actual.logits}) < 1e-5
        assert len(actual.cross_attentions) == len(expected.cross_attentions) == 2
        torch.testing.assert_close(actual.cross_attentions[0], expected.cross_attentions[0], rtol=1e-4, atol=1e-5)

    @every_form
    @pytest.mark.parametrize(
        "changes",
        [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}, {"reorder_and_upcast_attn": True}],
    )
    def test_gpt2_as_its_config_scales_scores(self, form: str, changes: dict[str, bool]) -> None:
        native = tiny_model(BY_TYPE["gpt2"], transformers.GPT2LMHeadModel, **changes)
        inputs = probe_inputs(native)
        with torch.no_grad():
            expected, actual = native(**inputs).logits, converted(native, 32, form)(**inputs).logits
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)

    def test_gpt2_with_cross_attention_is_refused(self) -> None:
        native = tiny_model(BY_TYPE["gpt2"], add_cross_attention=True)
        for verb in (collab.plan, collab.inspect):
            with pytest.raises(collab.errors.UnsupportedArchitectureError, match=r"cross.attention"):
                verb(native)
        with pytest.raises(collab.errors.UnsupportedArchitectureError, match=r"cross.attention"):
            collab.convert(native, collab.ConversionConfig(rank=8))
        with pytest.raises(ValueError, match=r"cross.attention"):
            AutoModel.from_config(BY_TYPE["gpt2"].family.config_class(add_cross_attention=True))

    @every_form
    def test_opt_whose_embeddings_are_narrower_and_normalized_after(self, form: str) -> None:
        changes = {"word_embed_proj_dim": 16, "do_layer_norm_before": False}
        native = tiny_model(BY_TYPE["opt"], transformers.OPTForCausalLM, **changes)
        inputs = probe_inputs(native)
        with torch.no_grad():
            expected, actual = native(**inputs).logits, converted(native, 32, form)(**inputs).logits
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)

    def test_cross_attention_is_cached(self) -> None:
        config = BY_TYPE["bert"].config(is_decoder=True, add_cross_attention=True, eos_token_id=None)
        native = random_model(transformers.BertLMHeadModel, config)
        model = converted(native, 13)
        other = torch.randn(1, 6, 32)
        tokens = torch.tensor([[5, 9, 11, 7, 3]])
        with torch.no_grad():
            whole = model(tokens, encoder_hidden_states=other).logits
            cache, steps = None, []
            for token in tokens.split(1, dim=1):
                out = model(token, encoder_hidden_states=other, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                steps.append(out.logits)
        torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-4, atol=1e-5)


class TestFromScratch:
    """Collaborative models can be built from a config alone, as the paper trains them."""

    @every_kind
    def test_default_and_given_layers(self, row: Row) -> None:
        config = row.family.config_class(**row.values)
        full = AutoModel.from_config(config)
        small = AutoModel.from_config(
            row.family.config_class(**row.values, collab_layers=[{"form": "tucker", "rank": 6}])
        )
        assert type(full) is row.family.base
        layers = [module for module in small.modules() if isinstance(module, CollaborativeAttention)]
        expected = (4, 6) if row.is_rotary else (4, 6, 6)  # one complex dimension for 3 frequencies
        assert {layer.mixing.shape for layer in layers} == {expected}
        assert all(parameter.isfinite().all() for parameter in full.parameters())
        assert all((layer.mixing.abs().sum() > 0) for layer in layers)

    def test_wrong_number_of_layers(self) -> None:
        row = BY_TYPE["bert"]
        entry = {"form": "cp", "rank": 6}
        with pytest.raises(ValueError, match="3 collab_layers, but the model has 2"):
            AutoModel.from_config(row.family.config_class(**row.values, collab_layers=[entry] * 3))
        with pytest.raises(ValueError, match="above 32"):
            AutoModel.from_config(row.family.config_class(**row.values, collab_layers=[entry | {"rank": 33}]))
        with pytest.raises(StrictDataclassClassValidationError, match="Unknown form"):
            row.family.config_class(**row.values, collab_layers=[{"form": "x", "rank": 1}])


@pytest.mark.slow
def test_peft_lora_matches_the_names() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    for row in by_layers(ROWS):
        model = converted(tiny_model(row), 8)
        adapted = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(target_modules=["query", "value"], r=2))
        inputs = probe_inputs(model)
        with torch.no_grad():
            assert largest_difference(model(**inputs), adapted(**inputs)) < 1e-5
        assert any("lora" in name and "query" in name for name, _ in adapted.named_parameters())
