"""Collaborative CamemBERT."""

from transformers.models.camembert import modeling_camembert as native

from .collab_family import BertFamily


class CollabCamembertModel(BertFamily, native.CamembertModel):
    native_prefix = "Camembert"
