"""Does a folder reload to the model that was written into it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForMultipleChoice, PreTrainedModel

from .errors import VerificationError

_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 2e-2, torch.float16: 5e-3}


def probe_inputs(model: PreTrainedModel, seed: int = 0) -> dict[str, Tensor]:
    """A small random batch that a model accepts: two sequences, the second one padded, or two images.

    Args:
        model: of any supported family, with any head.
        seed: of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    if model.main_input_name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        pixels = torch.randn(2, config.num_channels, height, width, generator=generator)
        return {"pixel_values": pixels.to(model.device, model.dtype)}
    # RoBERTa and its kin number positions from the padding id.
    length = max(1, min(8, config.max_position_embeddings - (config.pad_token_id or 0) - 1))
    inputs = {
        "input_ids": torch.randint(config.vocab_size, (2, length), generator=generator),
        "attention_mask": torch.ones(2, length, dtype=torch.long),
    }
    inputs["attention_mask"][1, length // 2 :] = 0
    if type(model) is AutoModelForMultipleChoice._model_mapping.get(type(config), None):
        inputs = {name: value.unsqueeze(1) for name, value in inputs.items()}  # one choice for each example
    if getattr(config, "add_cross_attention", False):
        inputs["encoder_hidden_states"] = torch.randn(2, 5, config.hidden_size, generator=generator).to(model.dtype)
    return {name: value.to(model.device) for name, value in inputs.items()}


def verify(folder: Path, model: PreTrainedModel) -> dict[str, Any]:
    """Reloads a folder and compares it with the model that was written into it: every weight, and outputs.

    Args:
        folder: what was written.
        model: what was written into it.

    Returns:
        What was compared, for the report.

    Raises:
        VerificationError: if anything differs.
    """
    loaded: Any = type(model).from_pretrained(
        folder, dtype=model.dtype, local_files_only=True, output_loading_info=True
    )
    reloaded, info = loaded
    if info["missing_keys"]:
        raise VerificationError(f"The written model lacks {', '.join(sorted(info['missing_keys']))}.")
    written, read = model.state_dict(), reloaded.state_dict()
    for name, tensor in written.items():
        if not torch.equal(tensor.cpu(), read[name].cpu()):
            raise VerificationError(f"{name} does not reload as it was written.")

    reloaded.to(model.device)
    inputs = probe_inputs(model)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            expected, actual = model(**inputs), reloaded(**inputs)
    finally:
        model.train(training)
    tolerance = _TOLERANCE.get(model.dtype, 1e-5)
    largest = 0.0
    for name, value in expected.items():
        if isinstance(value, Tensor):
            difference = float((value - actual[name]).abs().max())
            largest = max(largest, difference)
            if not difference <= tolerance * max(1.0, float(value.abs().max())):
                raise VerificationError(f"{name} of the reloaded model differs by {difference:.2e} on random inputs.")
    return {"weights_equal": True, "largest_output_difference": largest, "tolerance": tolerance}
