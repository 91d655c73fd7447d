"""Collaborative OPT."""

from transformers.models.opt import modeling_opt as native

from .collab_feed_forward import FeedForward
from .collab_layouts import CLIPFamily


class CollabOPTModel(CLIPFamily, native.OPTModel):
    native_prefix = "OPT"
    native_feed_forward = {"{}DecoderLayer": FeedForward("fc1", "fc2", method="")}
    native_others = ["{}Decoder"]
    expands_masks = counts_by_mask = True
