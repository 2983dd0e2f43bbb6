"""An architecture by its name: the network with random weights, and inputs; equal in every process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.models import packages, senses, text, vision  # noqa: F401 - packages first

BATCH = 2
SEED = 7

_TRANSFORMERS = (
    *(text.DECODERS, text.ENCODERS, text.TRANSLATORS),
    *(senses.IMAGES, senses.PAIRS, senses.SOUNDS, senses.SPECTRA),
)
NAMES = [*(name for table in _TRANSFORMERS for name in table), *vision.NETWORKS]


@dataclass(frozen=True)
class Subject:
    """A network in training mode, without dropout, on the CPU, and the arguments it is called with."""

    network: nn.Module
    inputs: dict[str, torch.Tensor]


def build(name: str, draw: int = 0) -> Subject:
    """Make an architecture, with the inputs of one ``draw``; raises KeyError if there is none of that name."""
    torch.manual_seed(SEED)
    if name in vision.NETWORKS:
        network = vision.NETWORKS[name]()
        side = vision.SIDES.get(name, vision.IMAGE)
        torch.manual_seed(SEED + draw)
        inputs = {"x": torch.randn(BATCH, 3, side, side)}
    else:
        network = _transformer(name)
        torch.manual_seed(SEED + draw)
        inputs = _inputs(name, network.config)
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0  # drawn numbers are not the CPU's
    return Subject(network.train(), inputs)


def _transformer(name: str) -> Any:
    import transformers  # noqa: PLC0415 - seconds, that networks of the others need not take

    table = next(table for table in _TRANSFORMERS if name in table)
    class_name, config_name, sizes = table[name]
    config = getattr(transformers, config_name)(**sizes)
    _without_chance(config)
    network = getattr(transformers, class_name)(config)
    if name in text.MIXTURES:  # the implementation of fixed shapes, and the one that float64 has
        network.set_experts_implementation("batched_mm")
    return network


def _without_chance(config: Any) -> None:
    for each in (config, *(getattr(config, name, None) for name in ("text_config", "vision_config"))):
        if each is None:
            continue
        for key, value in list(vars(each).items()):
            if isinstance(value, float) and ("drop" in key or key.startswith("mask_") or key.endswith("_noise")):
                setattr(each, key, 0.0)
        if hasattr(each, "use_cache"):
            each.use_cache = False


def _inputs(name: str, config: Any) -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, text.VOCABULARY, (BATCH, text.LENGTH))
    mask = torch.ones_like(tokens)
    mask[1, -4:] = 0
    begun = torch.randint(3, text.VOCABULARY, (BATCH, text.LENGTH // 2))
    image = torch.randn(BATCH, 3, senses.IMAGE, senses.IMAGE)
    by_table = (
        (text.DECODERS, {"input_ids": tokens}),
        (text.ENCODERS, {"input_ids": tokens, "attention_mask": mask}),
        (text.TRANSLATORS, {"input_ids": tokens, "decoder_input_ids": begun}),
        (senses.IMAGES, {"pixel_values": image}),
        (senses.PAIRS, {"input_ids": tokens, "pixel_values": image}),
        (senses.SOUNDS, {"input_values": torch.randn(BATCH, senses.SAMPLES)}),
    )
    for table, inputs in by_table:
        if name in table:
            return inputs
    frames = 2 * config.max_source_positions
    return {"input_features": torch.randn(BATCH, config.num_mel_bins, frames), "decoder_input_ids": begun}
