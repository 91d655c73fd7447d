"""Collaborative Data2Vec vision. Its native layers are of one class for each kernel."""

from typing import Any

from torch import Tensor, nn
from transformers.models.data2vec import modeling_data2vec_vision as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import BertFamily


class CollabData2VecVisionAttention(CollaborativeSelfAttention):
    """Adds relative position biases, of the layer and of the whole model, where there are any."""

    native_names = CollaborativeSelfAttention.native_names | {"relative_position_bias": "relative_position_bias"}
    native_forward = native.Data2VecVisionSelfAttention.forward  # a layer of the other kernel returns no weights
    long_kinds = ()
    relative_position_bias: nn.Module

    @classmethod
    def scores_input(cls, native: Any, given: dict[str, Any]) -> tuple[Any, Tensor | None]:
        bias = given.get("relative_position_bias")
        if hasattr(native, "relative_position_bias"):
            windows = tuple(size // native.config.patch_size for size in given["resolution"])
            length = given["hidden_states"].shape[1]
            own = native.relative_position_bias(windows, given.get("interpolate_pos_encoding", False), dim_size=length)
            bias = own if bias is None else bias + own
        return None, bias

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        output_attentions: bool = False,
        relative_position_bias: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        resolution: tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As the native layer; see `CollaborativeSelfAttention.forward`."""
        given = {
            "hidden_states": hidden_states,
            "relative_position_bias": relative_position_bias,
            "interpolate_pos_encoding": interpolate_pos_encoding,
            "resolution": resolution,
        }
        _, bias = self.scores_input(self, given)
        return super().forward(hidden_states, position_bias=bias, output_attentions=output_attentions)


class CollabData2VecVisionModel(BertFamily, native.Data2VecVisionModel):
    native_prefix = "Data2VecVision"
    native_attention = {
        "{}SelfAttention": CollabData2VecVisionAttention,
        "{}SdpaSelfAttention": CollabData2VecVisionAttention,
    }
