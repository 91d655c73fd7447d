"""collab converts pretrained transformers to collaborative attention.

Cordonnier, Loukas, Jaggi 2020, "Multi-Head Attention: Collaborate Instead of Concatenate" (arXiv 2006.16362).

Notation, the same in every docstring and shape comment:

====  =====================================================================================
B     batch
T, S  query tokens, key tokens
D     hidden size; D_q and D_k where query and key inputs differ in width
H     heads
d     head dimension of the original layer
K     H·d, query/key dimensions of the original layer
R     rank: the number of query/key dimensions that the heads share
x, y  query-side and key-side hidden state (row vectors)
W_Q, W_K  original projections, D×K; head h owns the columns W_Q^h, W_K^h
A_h   W_Q^h W_K^hᵀ ∈ R^{D×D}, what head h compares
𝒯     the D×H×D tensor with 𝒯[:, h, :] = A_h
W̃_Q, W̃_K  shared projections, D×R
M     mixing matrix, H×R; m_h its row for head h
G_h   what stands between the shared projections: Â_h = W̃_Q G_h W̃_Kᵀ
c_h   content bias W_K^h b_Q^h ∈ R^D
====  =====================================================================================

The verbs here work on models in memory; the same verbs in `collab.checkpoints` work from folder to folder. Importing
collab registers the converted models with transformers, so that ``AutoModel.from_pretrained(folder)`` and the other
Auto classes load them. Nothing heavy is imported before it is used: the public names stand in ``__init__.pyi``.
"""

import lazy_loader

from .models.registration import register_with_transformers

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

register_with_transformers()
