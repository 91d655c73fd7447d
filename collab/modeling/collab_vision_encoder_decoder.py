"""Collaborative models of an image encoder and a decoder of text, such as ViT with BERT."""

from transformers.models.vision_encoder_decoder import modeling_vision_encoder_decoder as native

from .collab_composite import DECODERS, CollaborativeComposite, Part
from .collab_layouts import ViTFamily

ENCODERS = {
    "vit": Part(ViTFamily, "ViT"),
    "deit": Part(ViTFamily, "DeiT"),
    "dinov2": Part(ViTFamily, "Dinov2", inner=("{}Encoder",)),
}


class CollabVisionEncoderDecoderModel(CollaborativeComposite, native.VisionEncoderDecoderModel):
    sides = {"encoder": ENCODERS, "decoder": DECODERS}
