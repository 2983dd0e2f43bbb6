"""Answer requests of any length with the GPT of ``train_gpt``, padded to a few bucket lengths and compiled for these.

Before a deployment, on any machine, without weights::

    neff-cache prewarm examples/serve_gpt.py:prewarm --meta --shapes 16,32,64 --plan gpt.plan
    neff-cache check gpt.plan
    NEURON_CACHE_ON_MISS=fail python examples/serve_gpt.py --buckets 16,32,64
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from train_gpt import GPT

import neuron_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHARACTERS = 96


def prewarm() -> tuple[torch.nn.Module, Callable[[int], tuple[torch.Tensor]]]:
    """Return what is served, and the inputs of a bucket: the entry point of ``neff-cache prewarm``."""
    return GPT(CHARACTERS).eval(), lambda length: (torch.zeros(1, length, dtype=torch.int64),)


def answer(model: Callable[[torch.Tensor], torch.Tensor], prompt: Sequence[int], buckets: Sequence[int]) -> int:
    """Return the likeliest next character after ``prompt``.

    Attention is causal: what is padded on the right is unseen.
    """
    bucket = min(bucket for bucket in buckets if bucket >= len(prompt))
    tokens = functional.pad(torch.tensor([prompt]), (0, bucket - len(prompt))).to("neuron")
    with torch.inference_mode():
        logits = model(tokens).cpu()
    return int(logits[0, len(prompt) - 1].argmax())


def main() -> None:
    """Answer ``--requests`` random prompts."""
    parser = argparse.ArgumentParser(description="Serve a small GPT, compiled for a few bucket lengths.")
    parser.add_argument("--buckets", default="16,32,64", help="lengths to compile for, ascending")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    buckets = [int(length) for length in options.buckets.split(",")]
    torch.manual_seed(0)
    network, _ = prewarm()
    model = torch.compile(network.to("neuron"), backend="neuron")
    lengths = torch.randint(1, buckets[-1] + 1, (options.requests,)).tolist()
    prompts = [torch.randint(CHARACTERS, (length,)).tolist() for length in (*buckets, *lengths)]
    answers = [answer(model, prompt, buckets) for prompt in prompts]
    stats = neuron_backend.cache_stats()
    if options.json:
        print(json.dumps({"answers": answers, "compiles": stats["compiles"], "keys": stats["keys"]}), flush=True)
    else:
        print(f"{len(answers)} requests answered, {stats['compiles']} programs compiled")


if __name__ == "__main__":
    main()
