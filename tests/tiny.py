"""Tiny random models: one row for each family. A new family adds a row. And what tests do with them everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AlbertConfig,
    BertConfig,
    BertTokenizerFast,
    CamembertConfig,
    DeiTConfig,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    MPNetConfig,
    OPTConfig,
    PretrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    ViTConfig,
    XLMRobertaConfig,
)

import collab
from collab.decomposition import FORMS
from collab.models.families import Family, families
from collab.models.inputs import probe_inputs

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
_IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 8,
    "encoder_stride": 8,
}


@dataclass(frozen=True)
class Row:
    """A family's tiny config."""

    config_class: type[PretrainedConfig]
    values: dict[str, Any]
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        return self.config_class.model_type

    @property
    def family(self) -> Family:
        return families()[self.model_type]

    def config(self, **changes: Any) -> PretrainedConfig:
        return self.config_class(**{**self.values, **changes})


ROWS = [
    Row(BertConfig, _TEXT),
    Row(RobertaConfig, _TEXT),
    Row(XLMRobertaConfig, _TEXT),
    Row(CamembertConfig, _TEXT),
    Row(ElectraConfig, _TEXT | {"embedding_size": 16}),
    Row(
        DistilBertConfig,
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
        AlbertConfig,
        _TEXT | {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    Row(MPNetConfig, {name: value for name, value in _TEXT.items() if name != "type_vocab_size"}),
    Row(
        GPT2Config,
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
        OPTConfig,
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
    Row(ViTConfig, _IMAGE),
    Row(DeiTConfig, _IMAGE),
]
BY_TYPE = {row.model_type: row for row in ROWS}
BERT = BY_TYPE["bert"]
DECODERS = [row for row in ROWS if row.model_type in ("gpt2", "opt")]
"""Families of decoders, whose configs need not say so."""

every_family = pytest.mark.parametrize("row", ROWS, ids=[row.model_type for row in ROWS])
every_head = pytest.mark.parametrize(
    ("row", "native_class"),
    [
        pytest.param(row, model.native_class(), id=model.native_class().__name__)
        for row in ROWS
        for model in row.family.models
    ],
)
every_form = pytest.mark.parametrize("form", FORMS)


def random_model(native_class: type[PreTrainedModel], config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A model whose weights, biases included, are large enough for the attention to matter."""
    torch.manual_seed(seed)
    model = native_class(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layernorm" not in name.lower() and "layer_norm" not in name.lower():
                parameter.normal_(0, 0.25)
    return model.eval()


def tiny_model(row: Row, native_class: type[PreTrainedModel] | None = None, **changes: Any) -> PreTrainedModel:
    """A row's model, its base model unless another class is given."""
    return random_model(native_class or row.family.base.native_class(), row.config(**changes))


def converted(native: PreTrainedModel, rank: int | float = 8, form: str = "cp", **settings: Any) -> PreTrainedModel:
    """A converted copy of a model, by its weights alone."""
    return collab.convert(native, collab.ConversionConfig(rank=rank, form=form, compare=False, **settings)).model


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
    """K of a tiny model: its hidden size."""
    return model.config.hidden_size


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


def largest_difference(first: Any, second: Any) -> float:
    """The largest absolute difference between two models' outputs."""
    first, second = tensors(first), tensors(second)
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).detach().abs().max()) for name in first)
