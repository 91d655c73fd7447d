"""Collaborative models of a text encoder and a decoder, such as BERT with BERT."""

from transformers.models.encoder_decoder import modeling_encoder_decoder as native

from .collab_composite import DECODERS, CollaborativeComposite
from .collab_distilbert import CollabDistilBertModel
from .collab_family import collaborative_family


@collaborative_family()
class CollabEncoderDecoderModel(CollaborativeComposite, native.EncoderDecoderModel):
    sides = {"encoder": (*DECODERS, CollabDistilBertModel), "decoder": DECODERS}
