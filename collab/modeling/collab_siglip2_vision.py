"""Collaborative vision tower of SigLIP 2."""

from transformers.models.siglip2 import modeling_siglip2 as native

from .collab_feed_forward import FeedForward
from .collab_layouts import CLIPFamily


class CollabSiglip2VisionModel(CLIPFamily, native.Siglip2VisionModel):
    native_prefix = "Siglip2"
    # The pooling head has the same width in the config, so a native model pads narrower layers.
    native_feed_forward = {"{}EncoderLayer": FeedForward("mlp.fc1", "mlp.fc2", None, method="")}
