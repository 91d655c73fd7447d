"""Collaborative models of an image encoder and a decoder of text, such as ViT with BERT."""

from transformers.models.vision_encoder_decoder import modeling_vision_encoder_decoder as native

from .collab_composite import DECODERS, CollaborativeComposite
from .collab_deit import CollabDeiTModel
from .collab_dinov2 import CollabDinov2Model
from .collab_family import collaborative_family
from .collab_vit import CollabViTModel


@collaborative_family()
class CollabVisionEncoderDecoderModel(CollaborativeComposite, native.VisionEncoderDecoderModel):
    sides = {"encoder": (CollabViTModel, CollabDeiTModel, CollabDinov2Model), "decoder": DECODERS}
