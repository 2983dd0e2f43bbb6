"""Generate tokens with a small Llama and a static cache: on the CPU, on the device, and compiled. One line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import neuron_backend
from tests.models import packages, text  # noqa: F401 - makes transformers importable

NEW_TOKENS = 10


def network() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - after `packages`

    torch.manual_seed(0)
    _, _, sizes = text.DECODERS["llama"]
    return LlamaForCausalLM(LlamaConfig(**{**sizes, "eos_token_id": None})).eval()


def generate(model: Any, prompt: torch.Tensor) -> list[list[int]]:
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        cache_implementation="static",
    )
    return tokens.tolist()


def main() -> None:
    prompt = torch.randint(3, text.VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(1))
    model = network()
    answers = {"cpu": generate(model, prompt)}
    model.to("neuron")
    answers["eager"] = generate(model, prompt.to("neuron"))
    model.forward = torch.compile(model.forward, backend="neuron")
    answers["graph"] = generate(model, prompt.to("neuron"))
    stats = neuron_backend.cache_stats()
    json.dump(
        {
            "tokens": answers,
            "compiles": stats["compiles"],
            "host": neuron_backend.get_fallback_ops(),
            "graphs": stats["by_kind"]["graph"]["lookups"],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
