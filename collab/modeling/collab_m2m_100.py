"""Collaborative M2M100, whose model type is that of NLLB, too."""

from transformers.models.m2m_100 import modeling_m2m_100 as native

from .collab_layouts import BartFamily


class CollabM2M100Model(BartFamily, native.M2M100Model):
    native_prefix = "M2M100"
