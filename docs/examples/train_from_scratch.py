"""Train a small encoder from scratch whose heads share their queries and keys.

Usage: python docs/examples/train_from_scratch.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import collab.nn

SYMBOLS, LENGTH, WIDTH, HEADS = 16, 8, 32, 4


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Symbols in any order, one of them twice, and which two tokens are that one."""
    tokens = torch.rand(count, SYMBOLS).argsort(dim=1)[:, :LENGTH]
    first, second = torch.rand(count, LENGTH).argsort(dim=1)[:, :2].T
    row = torch.arange(count)
    tokens[row, first] = tokens[row, second]
    labels = torch.zeros(count, LENGTH, dtype=torch.long)
    labels[row, first] = labels[row, second] = 1
    return tokens, labels


def encoder(attention: nn.Module) -> nn.Sequential:
    """Two encoder layers of torch's, with copies of another attention."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 128, dropout=0.0, batch_first=True)
    layer.self_attn = attention
    return nn.Sequential(
        nn.Embedding(SYMBOLS, WIDTH),
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        nn.Linear(WIDTH, 2),
    )


def train(model: nn.Module) -> float:
    """Trains on new rows at every step. Returns in how many rows both are found."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(400):
        tokens, labels = rows(64)
        loss = cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return score(model.eval())


@torch.no_grad()
def score(model: nn.Module) -> float:
    """The part of 1,000 new rows in which the two tokens, and no others, are found."""
    tokens, labels = rows(1000)
    return (model(tokens).argmax(dim=2) == labels).all(dim=1).float().mean().item()


# What torch has: 4 heads of 8 query/key dimensions each, 32 in all.
torch.manual_seed(0)
original = encoder(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
print(f"torch, 32 query/key dimensions: {train(original):.3f}")

# 8 dimensions that all heads share: a quarter of the query/key weights, and a key of
# 8 numbers for each token.
for form in ("cp", "tucker"):
    torch.manual_seed(0)
    attention = collab.nn.MultiheadAttention(WIDTH, HEADS, 8, form, batch_first=True)
    print(f"{form}, 8 shared dimensions: {train(encoder(attention)):.3f}")

# A trained layer of torch's converts. At full width, 32, it computes the same.
torch.manual_seed(1)
print(f"torch, on other rows: {score(original):.3f}")
for layer in original[1].layers:
    layer.self_attn = collab.nn.MultiheadAttention.from_native(layer.self_attn)
torch.manual_seed(1)
print(f"converted, on the same: {score(original):.3f}")
