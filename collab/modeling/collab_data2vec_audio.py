"""Collaborative Data2Vec audio."""

from transformers.models.data2vec import modeling_data2vec_audio as native

from .collab_layouts import Wav2Vec2Family


class CollabData2VecAudioModel(Wav2Vec2Family, native.Data2VecAudioModel):
    native_prefix = "Data2VecAudio"
