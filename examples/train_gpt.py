"""Train a small character-level GPT on text that Python ships, with ``torch.compile(backend="neuron")``.

The forward and the backward graph are one program each; the optimizer runs eagerly.
"""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from common import arguments, finish, show
from torch import nn
from torch.nn import functional

import neuron_backend  # noqa: F401 - first: says what is missing where the device is not there

LAYERS, WIDTH, HEADS = 2, 64, 4
BATCH, CONTEXT = 8, 64


class Block(nn.Module):
    """One transformer block over ``[batch, time, width]``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then transform; both beside the residual path."""
        batch, time, width = x.shape
        query, key, value = (
            part.view(batch, time, HEADS, width // HEADS).transpose(1, 2)
            for part in self.attention(self.norm1(x)).split(width, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.contract(functional.gelu(self.expand(self.norm2(x))))


class GPT(nn.Module):
    """Characters in, logits of the next character out: ``[batch, time] -> [batch, time, characters]``."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits for each position."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.characters(tokens) + self.positions(positions))))


def main() -> None:
    """Train for ``--steps`` batches of 8 pieces of 64 characters."""
    options = arguments("Train a small GPT on Python's own documentation, compiled.")
    torch.manual_seed(options.seed)
    text = "".join(topics[name] for name in sorted(topics))[:200_000]
    alphabet = {character: index for index, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([alphabet[character] for character in text])
    # everything random is drawn on the host, so that all devices train on the same numbers
    network = GPT(len(alphabet))
    starts = torch.randint(len(tokens) - CONTEXT - 1, (options.steps, BATCH, 1)) + torch.arange(CONTEXT + 1)

    network = network.to(options.device)
    model = network if options.device == "cpu" else torch.compile(network, backend="neuron")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step, chosen in enumerate(starts):
        pieces = tokens[chosen].to(options.device)
        optimizer.zero_grad()
        logits = model(pieces[:, :-1].contiguous())
        loss = functional.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        show(step, losses[-1], options)
    finish("train_gpt", losses, options)


if __name__ == "__main__":
    main()
