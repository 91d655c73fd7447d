"""Leaves out the tokens that a text never uses: from the tokenizer, the embedding and every head as wide as it.

Text whose tokens all stay is encoded as before, to the same tokens under new ids, so the model's outputs are the same:

- WordPiece takes the longest token that fits, and that one stays;
- BPE merges by rank, and every merge on the way to a token that stays is kept with its parts;
- a unigram model takes the most probable tokens, and leaving out others makes none more probable.

Other words are split into shorter tokens that stay, or become unknown.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..data.features import check_known
from ..errors import ConfigurationError, DataError, UnsupportedArchitectureError, VerificationError
from ..io.checkpoint import Checkpoint
from ..models.assembly import described_shapes, rebuilt
from ..models.inputs import encoder_of, has_decoder
from ..models.layers import count_parameters
from ..steps.conversion import VocabularyCut
from ..steps.step import Count

_ROWS = 1000  # texts that are encoded at a time


def keep_tokens(checkpoint: Checkpoint, texts: Iterable[str]) -> Checkpoint:
    """Keeps the tokens that texts use, and the special ones, and leaves out all others.

    Args:
        checkpoint: a model of tokens, native or converted, with its tokenizer, of the fast type; not changed.
        texts: texts such as the model will be used on; the result is exact on text of the same tokens.

    Returns:
        The smaller model and its tokenizer, with a `VocabularyCut` as its report.

    Raises:
        ConfigurationError: if the tokenizer is not of the fast type, or of another kind than WordPiece, BPE or unigram.
        UnsupportedArchitectureError: if encoder and decoder have vocabularies of their own.
        DataError: if there is no text, or a token of it is not in the model's vocabulary.
        VerificationError: if the smaller tokenizer encodes one of the texts differently.
    """
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    if encoder_of(model) is not model or not getattr(model.config, "share_encoder_decoder_embeddings", True):
        raise UnsupportedArchitectureError(
            f"Tokens cannot be left out of this {type(model).__name__}, because its encoder and its decoder have "
            "vocabularies of their own. Keep all tokens."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigurationError("Tokens are left out of fast tokenizers only; this one has no tokenizer.json.")
    serialized = json.loads(tokenizer.backend_tokenizer.to_str())
    used: set[int] = set()
    sample: list[str] = []
    count = 0
    for batch in _batches(texts):
        count += len(batch)
        sample += batch[: max(0, _ROWS - len(sample))]
        for ids in tokenizer(batch, verbose=False)["input_ids"]:
            used.update(ids)
    if not count:
        raise DataError("There is no text to take tokens from.")
    embedding: Any = model.get_input_embeddings()
    size = len(embedding.weight)
    check_known(max(used, default=0), size)
    used |= _always(model, tokenizer)
    used = _with_parts(serialized["model"], used)
    ids = tuple(sorted(number for number in used if 0 <= number < size))
    numbers = {former: number for number, former in enumerate(ids)}
    smaller = _smaller_tokenizer(tokenizer, serialized, numbers)
    for before, after in zip(tokenizer(sample)["input_ids"], smaller(sample)["input_ids"], strict=True):
        if [numbers[number] for number in before] != after:
            raise VerificationError("The smaller tokenizer encodes some of the texts differently from the original's.")
    result = _smaller_model(model, numbers)
    parameters = Count(count_parameters(model), count_parameters(result))
    report = VocabularyCut(count, Count(size, len(ids)), parameters, ids, has_decoder(model))
    unused = {name: _rows_of(tensor, ids, size) for name, tensor in checkpoint.unused.items()}
    return checkpoint.then(report, model=result, processor=smaller, unused=unused)


def _rows_of(tensor: Tensor, ids: Sequence[int], size: int) -> Tensor:
    """The rows of the tokens that stay, of a tensor as long as the vocabulary was."""
    return tensor[torch.tensor(ids)] if tensor.ndim and len(tensor) == size else tensor


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(texts)
    while batch := list(islice(remaining, _ROWS)):
        yield batch


def _always(model: PreTrainedModel, tokenizer: Any) -> set[int]:
    """Ids that stay whether they are used or not: added and special tokens, and those that the config names."""
    kept = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    for config in _configs(model):
        for value in _token_ids(config).values():
            kept.update(value if isinstance(value, list) else [value])
    return kept | set(range(_first_position(model)))


def _first_position(model: PreTrainedModel) -> int:
    """The padding id of models that number positions from it on (RoBERTa, M2M100), so that it has to stay; or 0."""
    embeddings = getattr(model.base_model, "embeddings", None)
    places = [getattr(embeddings, "position_embeddings", None)]
    places += [module for module in model.modules() if hasattr(module, "create_position_ids_from_input_ids")]
    return max(getattr(place, "padding_idx", None) or 0 for place in places)


def _configs(model: PreTrainedModel) -> list[Any]:
    """The configs that name tokens: the model's and, if it has one, that of its generation."""
    generation = getattr(model, "generation_config", None)
    return [model.config] if generation is None else [model.config, generation]


def _token_ids(config: Any) -> dict[str, int | list[int]]:
    """The ids of single tokens that a config names, such as that of padding."""
    values = {name: value for name, value in config.to_dict().items() if name.endswith("_token_id")}
    return {name: value for name, value in values.items() if isinstance(value, int | list)}


def _renumber(config: Any, numbers: Mapping[int, int]) -> None:
    """Gives the tokens that a config names their new ids. What it forbids is forbidden still, where it is there."""
    for name, value in _token_ids(config).items():
        setattr(config, name, [numbers[n] for n in value] if isinstance(value, list) else numbers.get(value, value))
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        if (forbidden := getattr(config, name, None)) is not None:
            setattr(config, name, [numbers[n] for n in forbidden if n in numbers] or None)
    if (words := getattr(config, "bad_words_ids", None)) is not None:
        there = [word for word in words if all(n in numbers for n in word)]
        config.bad_words_ids = [[numbers[n] for n in word] for word in there] or None


def _with_parts(tokenizer_model: dict[str, Any], used: set[int]) -> set[int]:
    """The used ids, and those without which they could not be formed, or text not be read."""
    kind, vocabulary = tokenizer_model["type"], tokenizer_model["vocab"]
    if kind == "WordPiece":
        return used
    if kind == "Unigram":
        pieces = [piece for piece, _ in vocabulary]
        unknown = {tokenizer_model["unk_id"]} - {None}  # some have none
        return used | {number for number, piece in enumerate(pieces) if _is_byte(piece)} | unknown
    if kind != "BPE":
        raise ConfigurationError(f"Tokens are left out of WordPiece, BPE and unigram tokenizers, not of {kind}.")
    parts: dict[str, list[str]] = {}
    for first, second in map(_pair, tokenizer_model["merges"]):
        parts.setdefault(first + second, []).extend((first, second))
    names = {number: name for name, number in vocabulary.items()}
    # The alphabet: single characters, which stand for bytes in most tokenizers, and bytes written out.
    reached = {name for name in vocabulary if len(name) == 1 or _is_byte(name)}
    waiting = [names[number] for number in used if number in names]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += parts.get(name, [])
    return used | {vocabulary[name] for name in reached if name in vocabulary}


def _pair(merge: str | list[str]) -> tuple[str, str]:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _smaller_tokenizer(tokenizer: Any, serialized: dict[str, Any], numbers: Mapping[int, int]) -> Any:
    """A tokenizer of the same class with some of the tokens, under new ids."""
    trimmed = _renumbered(serialized, numbers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save_pretrained(folder)
        for path in folder.iterdir():
            if path.name not in ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
                path.unlink()
        (folder / "tokenizer.json").write_text(json.dumps(trimmed, ensure_ascii=False), encoding="utf-8")
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        if "added_tokens_decoder" in settings:
            added = settings["added_tokens_decoder"].items()
            settings["added_tokens_decoder"] = {
                str(numbers[int(former)]): token for former, token in added if int(former) in numbers
            }
            path.write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")
        return type(tokenizer).from_pretrained(folder)


def _renumbered(serialized: dict[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """The contents of tokenizer.json with some of the tokens, under new ids."""
    trimmed = copy.deepcopy(serialized)
    model = trimmed["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [model["vocab"][former] for former in numbers if former < len(model["vocab"])]
        if model["unk_id"] is not None:
            model["unk_id"] = numbers[model["unk_id"]]
    else:
        model["vocab"] = {name: numbers[former] for name, former in model["vocab"].items() if former in numbers}
    if "merges" in model:
        known = model["vocab"]
        model["merges"] = [
            merge for merge in model["merges"] if all(part in known for part in (*_pair(merge), "".join(_pair(merge))))
        ]
    # Some models have no embedding of an added token, such as one for padding that is never read.
    trimmed["added_tokens"] = [token for token in trimmed["added_tokens"] if token["id"] in numbers]
    for token in trimmed["added_tokens"]:
        token["id"] = numbers[token["id"]]
    if padding := trimmed.get("padding"):
        trimmed["padding"] = padding | {"pad_id": numbers[padding["pad_id"]]} if padding["pad_id"] in numbers else None
    processor = trimmed.get("post_processor")
    for step in (processor or {}).get("processors") or [processor or {}]:
        for name in ("sep", "cls"):
            if isinstance(step.get(name), list):
                step[name][1] = numbers[step[name][1]]
        special = step.get("special_tokens")
        for entry in special.values() if isinstance(special, dict) else ():
            entry["ids"] = [numbers[former] for former in entry["ids"]]
    return trimmed


def _smaller_model(model: PreTrainedModel, numbers: Mapping[int, int]) -> PreTrainedModel:
    """A model of the same class with some of the rows of its embedding, and of what is as long; new ids by former."""
    config = copy.deepcopy(model.config)
    _renumber(config, numbers)
    config.vocab_size = len(numbers)
    if getattr(config, "decoder_vocab_size", None) is not None:
        config.decoder_vocab_size = len(numbers)
    shapes = described_shapes(model, config)
    rows = torch.tensor(list(numbers))
    state = {}
    for name, tensor in model.state_dict().items():
        for dim, (before, after) in enumerate(zip(tensor.shape, shapes[name], strict=True)):
            if before != after:
                tensor = tensor.index_select(dim, rows.to(tensor.device))
        state[name] = tensor.detach().clone()
    smaller = rebuilt(model, config, state)
    if (generation := getattr(smaller, "generation_config", None)) is not None:
        _renumber(generation, numbers)
    return smaller
