"""Attention is one program where torch's composite would be a dozen, and gives what the CPU gives."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import neuron_backend
from neuron_backend.eager import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 7, 8
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
MASKS: dict[str, Callable[[torch.dtype], dict[str, Any]]] = {
    "none": lambda _: {},
    "causal": lambda _: {"is_causal": True},
    "of bools": lambda _: {"attn_mask": torch.rand(BATCH, 1, QUERIES, KEYS) > 0.3},
    "of floats": lambda dtype: {"attn_mask": torch.randn(QUERIES, KEYS).to(dtype)},
    "that hides a whole row": lambda _: {"attn_mask": (torch.arange(QUERIES) != 2)[:, None].expand(QUERIES, KEYS)},
}


def inputs(dtype: torch.dtype = torch.float32, *, shared: int = 1) -> list[torch.Tensor]:
    shapes = ((HEADS, QUERIES), (HEADS // shared, KEYS), (HEADS // shared, KEYS))
    return [torch.randn(BATCH, *shape, WIDTH).to(dtype) for shape in shapes]


def with_gradients(tensors: list[torch.Tensor], **settings: Any) -> list[torch.Tensor]:
    """Return attention and its three gradients."""
    leaves = [each.detach().requires_grad_() for each in tensors]
    output = scaled_dot_product_attention(*leaves, **settings)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape).to(output.device)
    return [output, *torch.autograd.grad((output * weights).sum(), leaves)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.share(8)
def test_attention_and_its_gradients_are_the_cpus(dtype: torch.dtype, shared: int, mask: str) -> None:
    settings = {**MASKS[mask](dtype), "enable_gqa": shared > 1, "scale": 0.3 if shared > 1 else None}
    tensors = inputs(dtype, shared=shared)
    expected = with_gradients(tensors, **settings)
    moved = {name: each.to("neuron") if isinstance(each, torch.Tensor) else each for name, each in settings.items()}
    for got, wanted in zip(with_gradients([each.to("neuron") for each in tensors], **moved), expected, strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_attention_is_one_compile_forward_and_one_backward() -> None:
    leaves = [each.to("neuron").requires_grad_() for each in inputs()]
    with dispatch.without_plans():
        output = scaled_dot_product_attention(*leaves, is_causal=True)
        assert len(dispatch.plans()) == 1
        torch.autograd.grad(output, leaves, torch.ones_like(output))
        assert len(dispatch.plans()) == 2


def test_compiled_attention_takes_prompts_of_every_length() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: scaled_dot_product_attention(x, x, x, is_causal=True), backend="neuron")
    for length in (3, 5, 4):
        x = torch.randn(1, HEADS, length, WIDTH)
        expected = scaled_dot_product_attention(x, x, x, is_causal=True)
        torch.testing.assert_close(compiled(x.to("neuron")).cpu(), expected, rtol=1e-5, atol=1e-5)


def test_what_the_one_program_cannot_do_is_done_by_several() -> None:
    query, key, value = (each.to("neuron") for each in inputs())
    mask = torch.randn(QUERIES, KEYS)
    learned = mask.to("neuron").requires_grad_()
    (gradient,) = torch.autograd.grad(scaled_dot_product_attention(query, key, value, learned).sum(), [learned])
    on_cpu = mask.requires_grad_()
    output = scaled_dot_product_attention(query.cpu(), key.cpu(), value.cpu(), on_cpu)
    torch.testing.assert_close(gradient.cpu(), torch.autograd.grad(output.sum(), [on_cpu])[0])

    dropped = scaled_dot_product_attention(query, key, torch.ones_like(value), dropout_p=0.5).cpu()
    assert dropped.std() > 0  # without dropout, rows of weights add up to 1

    single = scaled_dot_product_attention(query[0], key[0], value[0])
    torch.testing.assert_close(single, scaled_dot_product_attention(query, key, value)[0])


def test_the_choice_of_a_kernel_is_honoured() -> None:
    query, key, value = (each.to("neuron").requires_grad_() for each in inputs())
    with dispatch.without_plans(), sdpa_kernel(SDPBackend.MATH):
        output = scaled_dot_product_attention(query, key, value)
        assert len(dispatch.plans()) > 1
        # only this one has second derivatives
        (gradient,) = torch.autograd.grad(output.square().sum(), [query], create_graph=True)
        assert torch.autograd.grad(gradient.sum(), [key])[0].isfinite().all()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No viable backend"):
        scaled_dot_product_attention(query, key, value, dropout_p=0.5)


def test_attention_under_autocast_takes_the_short_type() -> None:
    query, key, value = (each.to("neuron") for each in inputs())
    with torch.autocast("neuron", dtype=torch.bfloat16):
        output = scaled_dot_product_attention(query, key, value)
    assert output.dtype == torch.bfloat16
    expected = scaled_dot_product_attention(query.cpu(), key.cpu(), value.cpu())
    torch.testing.assert_close(output.cpu().float(), expected, rtol=6e-2, atol=6e-2)


ENCODERS: dict[str, dict[str, Any]] = {
    "relu": {},
    "gelu, norm first": {"activation": "gelu", "norm_first": True},
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # which the CPU uses
def test_an_encoder_that_is_evaluated_needs_no_host_and_no_nested_tensors(kind: str, compiled: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **ENCODERS[kind])
    encoder = nn.TransformerEncoder(layer, 2).eval()
    there = copy.deepcopy(encoder).to("neuron")
    run = torch.compile(there, backend="neuron") if compiled else there
    x = torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    neuron_backend.clear_fallback_ops()
    with torch.no_grad():
        for settings in ({}, {"src_key_padding_mask": padding}, {"mask": causal}, {"mask": causal, "is_causal": True}):
            moved = {
                name: each.to("neuron") if isinstance(each, torch.Tensor) else each for name, each in settings.items()
            }
            expected = encoder(x, **settings)
            got = run(x.to("neuron"), **moved).cpu()
            # the CPU leaves padding out, with nested tensors, and gives zeros for it
            seen = ~padding if "src_key_padding_mask" in settings else torch.ones_like(padding)
            torch.testing.assert_close(got[seen], expected[seen], rtol=1e-5, atol=1e-5)
    assert neuron_backend.get_fallback_ops() == {}


@pytest.mark.parametrize("average", [True, False], ids=["averaged weights", "weights of each head"])
def test_evaluated_multi_head_attention_gives_the_cpus_weights(average: bool) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    there = copy.deepcopy(attention).to("neuron")
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for pad in (None, padding):
        with torch.no_grad():
            expected = attention(x, x, x, key_padding_mask=pad, average_attn_weights=average)
            moved = x.to("neuron")
            there_pad = None if pad is None else pad.to("neuron")
            got = there(moved, moved, moved, key_padding_mask=there_pad, average_attn_weights=average)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-5)


def test_padding_that_would_become_nested_is_refused_in_one_sentence() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, mask_check=False)
    encoder = encoder.eval().to("neuron")
    padding = torch.tensor([[False, False, True]]).to("neuron")
    with torch.no_grad(), pytest.raises(NotImplementedError, match="device 'neuron' has no nested tensors"):
        encoder(torch.randn(1, 3, 8).to("neuron"), src_key_padding_mask=padding)
