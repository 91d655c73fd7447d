"""Collaborative models of a text encoder and a decoder, such as BERT with BERT."""

from transformers.models.encoder_decoder import modeling_encoder_decoder as native

from .collab_composite import DECODERS, CollaborativeComposite, Part
from .collab_layouts import DistilBertFamily


class CollabEncoderDecoderModel(CollaborativeComposite, native.EncoderDecoderModel):
    sides = {"encoder": DECODERS | {"distilbert": Part(DistilBertFamily, "DistilBert")}, "decoder": DECODERS}
