"""Why models of other families are not converted, and what to do instead.

One table by `model_type`, so that a refusal needs nothing but the config. `tests/robustness/test_refusals.py` compares
it with what the installed transformers calls an encoder.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why an architecture is not converted.

    Attributes:
        because: the reason, which completes "Models of type … cannot be converted: ".
        instead: what to do, a sentence.
    """

    because: str
    instead: str


_KEEP = "Keep the model as it is, or choose one of a supported family."

ROTARY = Refusal(
    "no file describes how its rotary positions rotate queries and keys, or its layers do more with them",
    _KEEP,
)
DISENTANGLED = Refusal(
    "its disentangled attention projects relative positions by weights of their own, so that a head has no single "
    "product of projections to share",
    "Use a DeBERTa-v2 or v3 checkpoint with share_att_key=true, such as microsoft/deberta-v3-base.",
)
RELATIVE = Refusal("its relative position terms are read by the queries or keys of each head", _KEEP)
SPARSE = Refusal("its attention computes only some of the scores, by a pattern, hashing or sampling", _KEEP)
MIXED = Refusal(
    "its attention is mixed with convolutions, or its queries, keys and values do not read the same states", _KEEP
)
SEVERAL = Refusal("its tokens have queries or scores of several kinds, each from projections of its own", _KEEP)
WINDOWS = Refusal(
    "its attention runs in windows or over coarser keys, of a size that changes from stage to stage", _KEEP
)
NORMED = Refusal(
    "it normalizes the queries and keys of each head, or bounds the scores, so that they are not bilinear", _KEEP
)
NONE = Refusal("it has no attention between tokens, so there is nothing to convert", _KEEP)
QUANTIZED = Refusal("its projections are quantized layers", "Convert the model that it was quantized from.")
DECODER = Refusal(
    "it is a decoder or an encoder with a decoder of another family than those supported",
    _KEEP,
)
DETECTOR = Refusal("it detects objects with a decoder on top of an image encoder", "Convert the image encoder alone.")
_SEVERAL_MODELS = "it holds several models, each with a config of its own"
TOWERS = Refusal(
    _SEVERAL_MODELS,
    "Save and convert each tower (model.text_model, model.vision_model; of BLIP the vision model alone), and put the "
    "converted ones in their place: docs/families.md shows how.",
)
OTHER_TOWERS = Refusal(
    _SEVERAL_MODELS, "No file describes both of its towers; CLIP, SigLIP and SigLIP 2 convert by tower."
)
REGROUPED = Refusal(
    "its attention runs along time and within frames in turn, over rows of tokens other than those of the videos, by "
    "which collab calibrates and scores heads",
    _KEEP,
)
BOTH_WAYS = Refusal(
    "one attention layer serves two streams in both directions, so that its queries and keys read states of two kinds",
    _KEEP,
)
LATENT = Refusal(
    "its attention layers normalize what they read themselves, and lead from the input to latent states and back", _KEEP
)
SEPARATE_LISTS = Refusal(
    "its attention and feed-forward layers stand in separate lists, and every pass writes a cache", _KEEP
)
UNTESTED = Refusal(
    "building it needs detectron2, which transformers does not install, so no conversion of it could be tested",
    "LayoutLM and LayoutLMv3 convert.",
)
PLAIN = Refusal(
    "no file describes this family yet, though its attention has a form that collab converts",
    "docs/families.md says how to add it: a small file and a row of a test.",
)
UNCLEAR = Refusal("collab does not know this architecture", _KEEP)

_BY_REASON: dict[Refusal, tuple[str, ...]] = {
    ROTARY: (
        "emu3", "esmc", "lasr_ctc", "llama4", "mllama", "modernbert-decoder", "modernvbert", "molmo2_text",
        "nemotron3_diarization", "neobert", "neomme", "roformer", "t5gemma", "ultrabert", "ultravbert", "vjepa2",
        "wav2vec2-conformer",
    ),
    DISENTANGLED: ("deberta",),
    RELATIVE: ("funnel", "granite_speech5_ctc", "jina_bert", "parakeet_ctc", "wav2vec2-bert", "xlnet"),
    SPARSE: ("big_bird", "longformer", "mra", "nystromformer", "reformer", "yoso"),
    MIXED: (
        "canine", "convbert", "cvt", "levit", "mobilebert", "mobilevit", "mobilevitv2", "squeezebert", "swiftformer",
    ),
    SEVERAL: ("lilt", "luke"),
    WINDOWS: ("dinat", "donut-swin", "hiera", "pvt", "pvt_v2", "segformer", "swin"),
    NORMED: ("gemma3", "gemma3_text", "qwen3", "swinv2", "videoprism", "videoprism_vision_model"),
    NONE: (
        "bit", "convnext", "convnextv2", "efficientnet", "fnet", "focalnet", "hgnet_v2", "mobilenet_v1", "mobilenet_v2",
        "poolformer", "pp_lcnet", "regnet", "resnet", "textnet", "timm_wrapper",
    ),
    QUANTIZED: ("ibert",),
    DECODER: ("imagegpt", "mvp", "shieldgemma2"),
    TOWERS: ("blip", "clip", "siglip", "siglip2"),
    OTHER_TOWERS: ("align", "altclip", "blip-2", "chinese_clip", "clipseg", "metaclip_2", "tipsv2"),
    REGROUPED: ("timesformer",),
    BOTH_WAYS: ("lxmert",),
    LATENT: ("perceiver",),
    SEPARATE_LISTS: ("flaubert", "xlm"),
    UNTESTED: ("layoutlmv2",),
    PLAIN: ("sew-d",),
}  # fmt: skip

REFUSALS: dict[str, Refusal] = {model_type: refusal for refusal, types in _BY_REASON.items() for model_type in types}
"""Refusals by `model_type`."""


def refusal_of(model_type: str) -> Refusal:
    """Why a `model_type` without a family is not converted."""
    # Not at the top: importing transformers imports the families, which import this module.
    from transformers.models.auto import modeling_auto

    if model_type in REFUSALS:
        return REFUSALS[model_type]
    tables = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ")
    if any(model_type in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES") for table in tables):
        return DECODER
    return DETECTOR if model_type in modeling_auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES else UNCLEAR
