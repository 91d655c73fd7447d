"""What the installed transformers calls an encoder."""

from __future__ import annotations

from transformers.models.auto import modeling_auto

ENCODERS = (
    "MASKED_LM",
    "TEXT_ENCODING",
    "QUESTION_ANSWERING",
    "TABLE_QUESTION_ANSWERING",
    "DOCUMENT_QUESTION_ANSWERING",
    "IMAGE_CLASSIFICATION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "OBJECT_DETECTION",
    "AUDIO_CLASSIFICATION",
    "AUDIO_FRAME_CLASSIFICATION",
    "AUDIO_XVECTOR",
    "CTC",
)
"""Tasks of encoders, by the names of transformers' tables."""


def encoders() -> dict[str, list[str]]:
    """The names of the model classes that transformers' Auto classes load for these tasks, by `model_type`."""
    classes: dict[str, list[str]] = {}
    for task in ENCODERS:
        for model_type, names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            known = classes.setdefault(model_type, [])
            known += [name for name in ([names] if isinstance(names, str) else names) if name not in known]
    return dict(sorted(classes.items()))
