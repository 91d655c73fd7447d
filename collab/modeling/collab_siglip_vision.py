"""Collaborative vision tower of SigLIP."""

from transformers.models.siglip import modeling_siglip as native

from .collab_feed_forward import FeedForward
from .collab_layouts import CLIPFamily


class CollabSiglipVisionModel(CLIPFamily, native.SiglipVisionModel):
    native_prefix = "Siglip"
    # The pooling head has the same width in the config, so a native model pads narrower layers.
    native_feed_forward = {"{}EncoderLayer": FeedForward("mlp.fc1", "mlp.fc2", None, method="")}
