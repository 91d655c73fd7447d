"""What runs in a process without collab: loading exports by their own code, and by none.

No module of collab's or of the tests' is imported here, because they would be imported there too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def forget_collab(cache: Path) -> None:
    """Importing collab fails from here on, and the code of exports goes into a folder of its own."""
    sys.modules["collab"] = None  # type: ignore[assignment]
    import transformers
    from transformers import dynamic_module_utils

    sys.path[:] = [path for path in sys.path if path != dynamic_module_utils.HF_MODULES_CACHE]  # the tests' own
    dynamic_module_utils.HF_MODULES_CACHE = str(cache)
    transformers.logging.set_verbosity_error()


def load(jobs: list[dict[str, Any]]) -> None:
    """Loads exports and writes their outputs; for the jobs see `reload.outputs_without_collab`."""
    import torch
    import transformers

    for job in jobs:
        trust = job.get("trust_remote_code", True)
        if job["auto_class"] == "SentenceTransformer":
            from sentence_transformers import SentenceTransformer

            model = SentenceTransformer(job["folder"], trust_remote_code=trust)
            outputs = {"embeddings": model.encode(job["sentences"], convert_to_tensor=True)}
        elif job["auto_class"] == "CrossEncoder":
            from sentence_transformers import CrossEncoder

            model = CrossEncoder(job["folder"], trust_remote_code=trust)
            outputs = {"scores": model.predict([job["sentences"]] * 2, convert_to_tensor=True)}
        else:
            auto_class = getattr(transformers, job["auto_class"])
            model = auto_class.from_pretrained(job["folder"], trust_remote_code=trust)
            with torch.no_grad():
                result = model(**torch.load(job["inputs"]))
            outputs = {name: value for name, value in result.items() if isinstance(value, torch.Tensor)}
        torch.save(outputs, job["outputs"])
    assert not any(name.partition(".")[0] == "collab" for name, module in sys.modules.items() if module is not None)


def save_again(folder: Path, output: Path, auto_class: str) -> None:
    """Loads an export by its own code and saves it."""
    import transformers

    getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True).save_pretrained(output)


def errors(folders: list[Path]) -> list[str]:
    """The last line of what transformers says to exports whose code nobody trusts."""
    from transformers import AutoModel

    messages = []
    for folder in folders:
        try:
            AutoModel.from_pretrained(folder)
        except Exception as error:
            messages.append(str(error).splitlines()[-1])
    return messages
