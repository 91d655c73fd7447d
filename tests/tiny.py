"""Tiny random models: one row for each family. A new family adds a row. And what tests do with them everywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertTokenizerFast, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import collab
from collab.decomposition import FORMS
from collab.evaluation.compare import agreement
from collab.modeling.collab_rotary import CollaborativeRotaryAttention
from collab.models.families import Family, families
from collab.models.inputs import has_decoder, probe_inputs
from collab.models.layers import attention_layers
from collab.models.states import eager_attention

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*SPECIAL, *LETTERS)
"""A tokenizer's vocabulary."""

_TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "pad_token_id": 1,
}
_ROTARY = {name: value for name, value in _TEXT.items() if name != "type_vocab_size"} | {
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 8,
    "encoder_stride": 8,
}
_BEIT = _IMAGE | {
    "num_hidden_layers": 3,
    "vocab_size": 60,
    "drop_path_rate": 0.0,
    "pool_scales": [1, 2],
    "auxiliary_channels": 8,
}

_TOWER = {name: value for name, value in _TEXT.items() if name != "type_vocab_size"}
_AUDIO = {
    "vocab_size": 20,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": [16, 16],
    "conv_kernel": [3, 2],
    "conv_stride": [2, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
    "tdnn_dim": [16, 16],
    "tdnn_kernel": [3, 1],
    "tdnn_dilation": [1, 1],
    "xvector_output_dim": 16,
    "codevector_dim": 16,
    "proj_codevector_dim": 16,
    "num_codevectors_per_group": 4,
}
_T5 = {
    "vocab_size": 60,
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "pad_token_id": 1,
    "decoder_start_token_id": 1,
}

_SEQ2SEQ = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 2,
}


@dataclass(frozen=True)
class Row:
    """A family's tiny config."""

    model_type: str
    values: dict[str, Any]

    @property
    def config_class(self) -> type[PretrainedConfig]:
        return CONFIG_MAPPING[self.model_type]

    @property
    def family(self) -> Family:
        return families()[self.model_type]

    @property
    def is_rotary(self) -> bool:
        classes = self.family.base.attention_classes.values()
        return any(issubclass(attention, CollaborativeRotaryAttention) for attention in classes)

    def config(self, **changes: Any) -> PretrainedConfig:
        return self.config_class(**{**self.values, **changes})


ROWS = [
    Row("bert", _TEXT),
    Row("roberta", _TEXT),
    Row("xlm-roberta", _TEXT),
    Row("camembert", _TEXT),
    Row("electra", _TEXT | {"embedding_size": 16}),
    Row(
        "distilbert",
        {
            "vocab_size": 60,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 40,
            "pad_token_id": 1,
        },
    ),
    Row(
        "albert",
        _TEXT | {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    Row("mpnet", _TOWER),
    Row(
        "deberta-v2",
        _TEXT
        | {
            "relative_attention": True,
            "share_att_key": True,
            "pos_att_type": "p2c|c2p",
            "position_buckets": 4,
            "norm_rel_ebd": "layer_norm",
            "conv_kernel_size": 3,
            "position_biased_input": False,
            "max_position_embeddings": 40,
        },
    ),
    Row("ernie", _TEXT),
    Row("xlm-roberta-xl", _TEXT),
    Row("roberta-prelayernorm", _TEXT),
    Row("data2vec-text", _TEXT),
    Row("xmod", _TEXT | {"languages": ["en_XX", "de_DE"], "default_language": "en_XX"}),
    Row("bert-generation", _TOWER),
    Row("layoutlm", _TEXT | {"max_2d_position_embeddings": 8}),
    Row(
        "layoutlmv3",
        _TEXT
        | {
            "max_2d_position_embeddings": 1024,
            "coordinate_size": 5,
            "shape_size": 6,
            "rel_pos_bins": 8,
            "rel_2d_pos_bins": 8,
            "max_rel_pos": 16,
            "max_rel_2d_pos": 16,
            "input_size": 16,
            "patch_size": 8,
        },
    ),
    Row("rembert", _TEXT | {"input_embedding_size": 16, "output_embedding_size": 24}),
    Row("megatron-bert", _TEXT),
    Row("roc_bert", _TEXT | {"pronunciation_vocab_size": 60, "shape_vocab_size": 60}),
    Row("splinter", _TEXT),
    Row(
        "markuplm",
        _TEXT
        | {
            "max_xpath_tag_unit_embeddings": 6,
            "max_xpath_subs_unit_embeddings": 6,
            "tag_pad_id": 5,
            "subs_pad_id": 5,
            "xpath_unit_hidden_size": 4,
            "max_depth": 2,
        },
    ),
    Row("tapas", _TOWER | {"type_vocab_sizes": [3, 4, 4, 2, 4, 4, 3], "max_num_rows": 4, "max_num_columns": 4}),
    Row("t5", _T5),
    Row("mt5", _T5),
    Row("umt5", _T5 | {"tie_word_embeddings": True}),
    Row("clip_text_model", _TOWER),
    Row("siglip_text_model", _TOWER),
    Row("siglip2_text_model", _TOWER),
    Row("tipsv2_text_model", _TOWER),
    Row("vit", _IMAGE),
    Row("deit", _IMAGE),
    Row("vit_msn", _IMAGE),
    Row("ijepa", _IMAGE),
    Row("dinov2", _IMAGE),
    Row("dinov2_with_registers", _IMAGE),
    Row("clip_vision_model", _IMAGE),
    Row("siglip_vision_model", _IMAGE),
    Row(
        "siglip2_vision_model",
        {name: value for name, value in _IMAGE.items() if name != "image_size"} | {"num_patches": 9},
    ),
    Row("blip_vision_model", _IMAGE),
    Row("beit", _BEIT | {"use_relative_position_bias": True, "out_indices": [0, 1, 2, 3]}),
    Row("data2vec-vision", _BEIT | {"use_shared_relative_position_bias": True, "out_indices": [1, 2, 3, 4]}),
    Row("videomae", _IMAGE | {"num_frames": 4}),
    Row("vivit", _IMAGE | {"num_frames": 4, "tubelet_size": [2, 8, 8]}),
    Row("wav2vec2", _AUDIO),
    Row("hubert", _AUDIO),
    Row("unispeech", _AUDIO),
    Row("unispeech-sat", _AUDIO),
    Row("sew", _AUDIO),
    Row("data2vec-audio", _AUDIO | {"conv_pos_kernel_size": 3, "num_conv_pos_embeddings": 2}),
    Row("wavlm", _AUDIO | {"num_buckets": 8, "max_bucket_distance": 16}),
    Row(
        "audio-spectrogram-transformer",
        _IMAGE | {"num_mel_bins": 16, "max_length": 16, "frequency_stride": 8, "time_stride": 8},
    ),
    Row(
        "whisper",
        {
            "vocab_size": 60,
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_layers": 1,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 48,
            "num_mel_bins": 8,
            "max_source_positions": 9,
            "max_target_positions": 40,
            "classifier_proj_size": 16,
            "pad_token_id": 1,
            "bos_token_id": 1,
            "eos_token_id": 1,
            "decoder_start_token_id": 1,
        },
    ),
    Row(
        "gpt2",
        {
            "vocab_size": 60,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_inner": 48,
            "n_positions": 40,
            "pad_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    Row(
        "opt",
        {
            "vocab_size": 60,
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": 40,
            "pad_token_id": 1,
        },
    ),
    Row("llama", _ROTARY),
    Row("mistral", _ROTARY | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6}),
    Row("qwen2", _ROTARY | {"num_key_value_heads": 2}),
    Row("marian", _SEQ2SEQ),
    Row("bart", _SEQ2SEQ),
    Row("mbart", _SEQ2SEQ),
    Row("m2m_100", _SEQ2SEQ),
    Row("pegasus", _SEQ2SEQ),
    Row("jina_embeddings_v3", _TEXT),
    Row("gte", _TEXT),
    Row("nomic_bert", _TEXT),
    Row("eurobert", _ROTARY | {"num_key_value_heads": 2}),
    Row("modernbert", _ROTARY | {"num_hidden_layers": 3, "local_attention": 8}),
    Row("esm", _ROTARY | {"position_embedding_type": "rotary", "mask_token_id": 4, "token_dropout": False}),
    Row("dinov3_vit", _IMAGE | {"num_register_tokens": 2, "pos_embed_rescale": None}),
]
BY_TYPE = {row.model_type: row for row in ROWS}
BERT = BY_TYPE["bert"]
DECODERS = [row for row in ROWS if row.model_type in ("gpt2", "opt", "llama", "mistral", "qwen2")]
"""Families of decoders, whose configs need not say so."""
SEQ2SEQ = [row for row in ROWS if has_decoder(row.family.base)]
"""Families of encoders with decoders."""
KINDS = ["encoder", "encoder", "decoder", "cross", "decoder", "cross"]
"""The kinds of attention of a tiny encoder with a decoder."""
_DRAWN = random.Random(0)
SENTENCES = [" ".join(_DRAWN.choices(LETTERS, k=_DRAWN.randint(3, 12))) for _ in range(80)]
PAIRS = list(zip(SENTENCES[::2], SENTENCES[1::2], strict=True))
"""Sources with their targets."""

UNROTATED = [row for row in ROWS if not row.is_rotary]
"""Families without rotary positions."""
OWN_VALUES = [row for row in ROWS if "num_key_value_heads" not in row.values]
"""Families whose heads have values of their own, so that they can be removed."""


def by_layers(rows: list[Row]) -> list[Row]:
    """The first family of every kind of layers and input: what concerns layers alone is the same in the others."""
    first: dict[object, Row] = {}
    for row in rows:
        base = row.family.base
        layers = frozenset(base.attention_classes.values())
        shared = "num_key_value_heads" in row.values
        first.setdefault((layers, base.main_input_name, row in DECODERS, shared), row)
    return list(first.values())


def _each(rows: list[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=[row.model_type for row in rows])


every_family = _each(ROWS)
every_layer = _each(by_layers(ROWS))


def taking_turns(
    rows: Sequence[Row], name: str, choices: dict[str, Any], always: set[str] | None = None
) -> pytest.MarkDecorator:
    """All choices for BERT and one for each other family, in turn; the other pairs as `exhaustive` tests.

    Where what a choice does depends little on the family. `always` are the families that are not `exhaustive`, if not
    all of them.
    """
    few = [row for row in rows if always is None or row.model_type in always]
    in_turn = [(row, number % len(choices)) for number, row in enumerate(few)]
    often_tested = [*in_turn, *((BERT, place) for place in range(len(choices)))]
    parameters = [
        pytest.param(
            row,
            choice,
            id=f"{row.model_type}-{label}",
            marks=exhaustive_unless((row, place) in often_tested),
        )
        for row in rows
        for place, (label, choice) in enumerate(choices.items())
    ]
    return pytest.mark.parametrize(("row", name), parameters)


def often(every: Iterable[Any], always: set[str], name: Callable[..., str] | None = None) -> list[Any]:
    """Parameters of which only some, by name, are tested always; the others as `exhaustive` tests. A tuple: several."""
    cases = [each if isinstance(each, tuple) else (each,) for each in every]
    names = [_named(case) if name is None else name(*case) for case in cases]
    assert always <= {*names}
    return [
        pytest.param(*case, id=named, marks=exhaustive_unless(named in always))
        for case, named in zip(cases, names, strict=True)
    ]


def in_pairs(first: str, firsts: Sequence[Any], second: str, seconds: Sequence[Any]) -> pytest.MarkDecorator:
    """Every pair of values of two parameters: always as few as have every value, the others as `exhaustive` tests."""
    pairs = [
        pytest.param(one, other, marks=exhaustive_unless(place % len(seconds) == number % len(firsts)))
        for place, one in enumerate(firsts)
        for number, other in enumerate(seconds)
    ]
    return pytest.mark.parametrize((first, second), pairs)


def _named(case: tuple[Any, ...]) -> str:
    """The name of a case, of those of its values."""
    return "-".join(
        value.model_type if isinstance(value, Row) else str(getattr(value, "__name__", value)) for value in case
    )


def exhaustive_unless(often_tested: bool) -> list[pytest.MarkDecorator]:
    """The marks of a case that is tested often, or only by `-m exhaustive`."""
    return [] if often_tested else [pytest.mark.exhaustive]


FEW_KINDS = {"bert", "deberta-v2", "eurobert", "gpt2", "t5", "vit", "wav2vec2", "whisper"}
"""Families that differ most: in positions, in what they read, and in whether they write."""


def _often_of(always: set[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", often(ROWS, always))


EVERY_KIND = {row.model_type for row in by_layers(ROWS)}
every_kind = _often_of(EVERY_KIND)
"""Every kind of layers always; all families, which takes long, as `exhaustive` tests."""
few_kinds_with_own_values = pytest.mark.parametrize(
    "row", often(by_layers(OWN_VALUES), FEW_KINDS & {row.model_type for row in OWN_VALUES})
)
few_kinds = _often_of(FEW_KINDS)
"""A few kinds of layers always, where a test takes seconds; all families as `exhaustive` tests."""


def in_turn(rows: list[Row]) -> pytest.MarkDecorator:
    """Every sixth family; all of them, which takes long, as an `exhaustive` test."""
    sixth, whole = pytest.param(rows[::6], id="a sixth"), pytest.param(rows, id="all", marks=pytest.mark.exhaustive)
    return pytest.mark.parametrize("rows", [sixth, whole])


def _heads_of(always: set[str], every: int | None = None) -> pytest.MarkDecorator:
    """Every model class of every family; of families that are not always tested, as `exhaustive` tests.

    Args:
        always: the families of which every class is always tested.
        every: of the other families, one class in so many is always tested, too; None for none of them.
    """
    parameters = [
        pytest.param(
            row,
            model.native_class(),
            id=model.native_class().__name__,
            marks=exhaustive_unless(row.model_type in always or (every is not None and (place + number) % every == 0)),
        )
        for place, row in enumerate(ROWS)
        for number, model in enumerate(row.family.models)
    ]
    return pytest.mark.parametrize(("row", "native_class"), parameters)


every_head = _heads_of(EVERY_KIND, every=2)
every_head_of_few_kinds = _heads_of(FEW_KINDS)
_BY_NAME = {form: form for form in FORMS}
every_family_and_form = taking_turns(ROWS, "form", _BY_NAME)
every_kind_and_form = taking_turns(ROWS, "form", _BY_NAME, EVERY_KIND)
every_form = pytest.mark.parametrize("form", FORMS)


def random_model(native_class: type[PreTrainedModel], config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A model whose weights, biases included, are large enough for the attention to matter."""
    torch.manual_seed(seed)
    model = native_class(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = "layernorm" in name.lower() or "layer_norm" in name.lower()
            if parameter.requires_grad and not norm:  # others are positions that are computed, and perhaps not saved
                parameter.normal_(0, 0.25)
    return model.eval()


def tiny_model(row: Row, native_class: type[PreTrainedModel] | None = None, **changes: Any) -> PreTrainedModel:
    """A row's model, its base model unless another class is given."""
    return random_model(native_class or row.family.base.native_class(), row.config(**changes))


def converted(native: PreTrainedModel, rank: int | float = 8, form: str = "cp", **settings: Any) -> PreTrainedModel:
    """A converted copy of a model, by its weights alone, in few sweeps: tests need no best factors."""
    settings = {"compare": False, "solver": collab.SolverOptions(max_sweeps=30)} | settings
    return collab.convert(native, collab.ConversionConfig(rank=rank, form=form, **settings)).model


def save_tokenizer(folder: Path, words: Iterable[str] = WORDS) -> None:
    """Writes the files of a BERT tokenizer that knows these words."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)


def save_with_tokenizer(model: PreTrainedModel, folder: Path, words: Iterable[str] = WORDS) -> Path:
    """Writes a model and its tokenizer into a folder, which is returned."""
    model.save_pretrained(folder)
    save_tokenizer(folder, words)
    return folder


def random_text(batch: int, length: int, *, left: bool = False, types: bool = False) -> dict[str, Tensor]:
    """Random tokens and their mask, the last row padded on the right, or on the left; with token types if wanted."""
    mask = torch.ones(batch, length, dtype=torch.long)
    if left:
        mask[-1, : length // 3] = 0
    else:
        mask[-1, length // 2 :] = 0
    inputs = {"input_ids": torch.randint(5, 35, (batch, length)), "attention_mask": mask}
    return inputs | ({"token_type_ids": torch.randint(2, (batch, length))} if types else {})


def full_rank(model: PreTrainedModel) -> int:
    """K of a tiny model."""
    return attention_layers(model)[0].total * attention_layers(model)[0].head_dim


def tensors(output: Any) -> dict[str, Tensor]:
    """The tensors of a model's output by name."""
    return {name: value for name, value in output.items() if isinstance(value, Tensor)}


def batches(model: PreTrainedModel, count: int = 8) -> list[dict[str, Tensor]]:
    """Batches that go with a model, each of other numbers."""
    return [probe_inputs(model, seed) for seed in range(count)]


def state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Copies of a model's weights by name."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def changed(model: PreTrainedModel, before: dict[str, Tensor]) -> set[str]:
    """The names of the weights that are not what they were."""
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def outputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """What a model answers to inputs that go with it, by name."""
    with torch.no_grad():
        return tensors(model(**probe_inputs(model)))


def of_seen(output: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """A model's outputs without those of padding, where kernels differ if a local layer shows it only padding."""
    mask = inputs.get("attention_mask", torch.ones(0))
    return {
        name: value[mask.bool()] if value.shape[: mask.ndim] == mask.shape else value
        for name, value in tensors(output).items()
    }


def check_calibration_is_closer(native: PreTrainedModel, data: str, tokenizer: BertTokenizerFast) -> None:
    """Checks that an encoder with a decoder, calibrated, is closer to the original than by its weights alone."""
    rows = {"synthetic": "synthetic", "pairs": PAIRS, "sources": SENTENCES[:40]}[data]
    options = collab.CalibrationOptions(samples=200)
    calibration = collab.calibrate(collab.Checkpoint(native, tokenizer), rows, options=options)
    assert all("decoder_input_ids" in batch for batch in calibration.held_out)
    config = collab.ConversionConfig(rank=12, refine="none", compare=False)
    calibrated = collab.convert(native, config, calibration=calibration)
    alone = agreement(native, converted(native, 12), calibration.held_out)
    assert calibrated.report.agreement is not None
    assert alone is not None
    assert calibrated.report.agreement["kl"] < alone["kl"]


def self_attentions(model: PreTrainedModel) -> tuple[Tensor, ...]:
    """The attention weights that a model records, of an encoder-decoder those of its encoder."""
    with eager_attention(model):
        output = model(**probe_inputs(model), output_attentions=True)
    return output["encoder_attentions" if "encoder_attentions" in output else "attentions"]


def largest_difference(first: Any, second: Any) -> float:
    """The largest absolute difference between two models' outputs."""
    return max(float((mine - yours).abs().max()) for mine, yours in _pairs(first, second))


def relative_difference(first: Any, second: Any) -> float:
    """The same, of outputs above 1 relative to the largest of them: rounding grows with what is computed."""
    differences = []
    for mine, yours in _pairs(first, second):
        seen = yours[yours > torch.finfo(yours.dtype).min] if yours.is_floating_point() else yours  # not what is masked
        differences.append(float((mine - yours).abs().max()) / max(1.0, float(seen.abs().max())))
    return max(differences)


def _pairs(first: Any, second: Any) -> list[tuple[Tensor, Tensor]]:
    first, second = tensors(first), tensors(second)
    assert first.keys() == second.keys()
    return [(first[name].detach(), second[name].detach()) for name in first]
