"""Loss curves of three networks on the stand-in beside the CPU's, and what a second process compiles.

    python bench/training.py [--steps 200] [--write]

A GPT (`examples/train_gpt.py`) and a Llama of transformers on Python's own documentation, a vision transformer of
torchvision on scikit-learn's digits; AdamW, in float32 and under autocast to bfloat16. Networks are compiled, the
optimizer runs eagerly. Each run is a process of its own. ``--write`` puts the picture into
``docs/figures/training.svg`` and the table into ``docs/training.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from train_gpt import GPT  # noqa: E402 - found through the path above

import neuron_backend  # noqa: E402
from tests.models import packages  # noqa: E402, F401 - makes transformers and torchvision importable

NETWORKS = ("gpt", "llama", "vit")
TYPES = ("float32", "bfloat16")
BATCH, CONTEXT = 8, 32
FIGURE = ROOT / "docs" / "figures" / "training.svg"
PAGE = ROOT / "docs" / "training.md"


def text_batches(steps):
    """Return batches ``[steps, batch, context + 1]`` of characters as numbers, and how many characters there are."""
    text = "".join(topics[name] for name in sorted(topics))[:200_000]
    alphabet = {character: index for index, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([alphabet[character] for character in text])
    starts = torch.randint(len(tokens) - CONTEXT - 1, (steps, BATCH, 1)) + torch.arange(CONTEXT + 1)
    return tokens[starts], len(alphabet)


def language(build, steps):
    """Return network and batches ``(inputs, targets)`` of a language model."""
    pieces, characters = text_batches(steps)
    return build(characters), [(each[:, :-1].contiguous(), each[:, 1:].flatten()) for each in pieces]


def gpt(steps):
    return language(GPT, steps)


def llama(steps):
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - seconds, for one network only

    class Logits(nn.Module):
        def __init__(self, characters):
            super().__init__()
            self.network = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=characters,
                    hidden_size=64,
                    intermediate_size=128,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    use_cache=False,
                )
            )

        def forward(self, tokens):
            return self.network(input_ids=tokens).logits

    return language(Logits, steps)


def vit(steps):
    from sklearn.datasets import load_digits  # noqa: PLC0415 - as above
    from torchvision.models import VisionTransformer  # noqa: PLC0415

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None].expand(-1, 3, -1, -1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    network = VisionTransformer(
        image_size=8, patch_size=2, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10
    )
    chosen = [torch.randperm(len(images))[:64] for _ in range(steps)]
    return network, [(images[each].contiguous(), labels[each]) for each in chosen]


def train(name, device, dtype, steps):
    """Train and return the losses; everything random is drawn on the host."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network, batches = {"gpt": gpt, "llama": llama, "vit": vit}[name](steps)
    network = network.to(device).train()
    model = network if device == "cpu" else torch.compile(network, backend="neuron")
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16) if dtype == "bfloat16" else nullcontext():
            logits = model(inputs.to(device)).flatten(0, -2)
            loss = functional.cross_entropy(logits, targets.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(name, device, dtype, steps, node):
    """Train in a child process; returns its losses and, of the device, what it compiled and ran on the host."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("NEURON_", "XLA_"))},
        "NEURON_CACHE_NODE_DIR": node,
    }
    command = [sys.executable, __file__, "--child", name, device, dtype, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def child(name, device, dtype, steps):
    losses = train(name, device, dtype, steps)
    result = {"losses": losses}
    if device == "neuron":
        result |= {
            "compiles": neuron_backend.cache_stats()["compiles"],
            "host": neuron_backend.get_fallback_ops(),
        }
    print(json.dumps(result), flush=True)


def picture(results, path):
    """Draw each network's curves, CPU under the device's, and write SVG that holds no date."""
    import matplotlib as mpl  # noqa: PLC0415 - only where a picture is wanted

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "training"
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice above

    figure, axes = plt.subplots(1, len(NETWORKS), figsize=(12, 3.6), layout="constrained")
    for axis, name in zip(axes, NETWORKS, strict=True):
        for dtype, color in zip(TYPES, ("tab:blue", "tab:orange"), strict=True):
            row = results[f"{name} {dtype}"]
            axis.plot(row["cpu"], color=color, linewidth=3, alpha=0.35, label=f"CPU, {dtype}")
            axis.plot(row["neuron"], color=color, linewidth=0.9, label=f"neuron (stand-in), {dtype}")
        axis.set(title=name, xlabel="step", ylabel="loss")
        axis.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def table(results):
    """Return the table as Markdown; distances are of the losses, step by step."""
    lines = [
        "| network | type | loss | largest distance from the CPU's | mean | compiled | by a second process | on host |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        distances = [abs(one - other) for one, other in zip(row["cpu"], row["neuron"], strict=True)]
        network, dtype = name.split()
        lines.append(
            f"| {network} | {dtype} | {row['neuron'][0]:.3f} to {row['neuron'][-1]:.3f} | {max(distances):.2g} "
            f"| {sum(distances) / len(distances):.2g} | {row['compiles']} | {row['again']} | {len(row['host'])} |"
        )
    return "\n".join(lines)


PAGE_TEXT = """# Training, beside the CPU

{steps} steps of three networks with AdamW on the stand-in, beside the same program on the CPU: the network by
`torch.compile(backend="neuron")`, the optimizer by eager operators. Everything random is drawn on the host. A second
process over the same node tier computes the same losses to the bit. *Compiled* is what a run adds to the programs of
those above it. Made by `python bench/training.py --write`.

![Loss curves](figures/training.svg)

{table}

In float32 the curves part by rounding, which training amplifies step by step: most where it overshoots, as the vision
transformer does. Under autocast to bfloat16 results are rounded to 8 bits, in other places than by the CPU's kernels,
so that single losses part earlier; what counts is that both go the same way.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="write docs/training.md and its picture")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write losses and counts here")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child, options.steps)
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            for dtype in TYPES:
                cpu, first, second = (
                    run(name, device, dtype, options.steps, folder) for device in ("cpu", "neuron", "neuron")
                )
                assert second["losses"] == first["losses"], f"{name} {dtype}: a second process computes other losses"
                row = {"cpu": cpu["losses"], "neuron": first["losses"], "again": second["compiles"]}
                results[f"{name} {dtype}"] = row | {"compiles": first["compiles"], "host": first["host"]}
                print(table({f"{name} {dtype}": results[f"{name} {dtype}"]}).splitlines()[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps(results))
    if options.write:
        picture(results, FIGURE)
        PAGE.write_text(PAGE_TEXT.format(steps=options.steps, table=table(results)))


if __name__ == "__main__":
    main()
