"""Complex numbers and Fourier transforms give PyTorch's numbers, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from neuron_backend.lowering import UnsupportedOperator

Function = Callable[..., torch.Tensor]
COMPLEX = [torch.complex64, pytest.param(torch.complex128, marks=pytest.mark.soak)]
TOLERANCE = {torch.complex64: 2e-5, torch.complex128: 1e-12, torch.float32: 2e-5, torch.float64: 1e-12}


def _numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))


UNARY: dict[str, Function] = {
    name: getattr(torch, name)
    for name in [
        *("abs", "angle", "conj_physical", "real", "imag", "sgn", "neg", "view_as_real", "isnan", "isinf", "isfinite"),
        *(
            "exp",
            "log",
            "sqrt",
            "rsqrt",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
            "square",
            "reciprocal",
            "sigmoid",
        ),
        *("acos", "asin", "atan", "acosh", "asinh", "atanh", "expm1", "log1p", "exp2", "log2", "log10"),
        *("sum", "mean", "prod", "var", "cumsum", "logical_not", "any", "all"),
    ]
    if name != "cumsum"
} | {
    "cumsum": lambda x: x.cumsum(1),
    "std": lambda x: x.std(1, unbiased=False),
    "conj, then imag": lambda x: x.conj().imag,
    "resolved": lambda x: x.conj().resolve_conj() + x.imag.resolve_neg(),
    "to float": lambda x: x.real.to(torch.int32).to(x.dtype),
    "to bool": lambda x: x.to(torch.bool),
    "pow 3": lambda x: x**3,
    "pow": lambda x: x ** (0.5 + 1j),
    "plus a number": lambda x: x + (1 - 2j),
    "transposed": lambda x: x.T.contiguous(),
    "padded": lambda x: torch.nn.functional.pad(x, (1, 2), value=1.5),
    "full": lambda x: torch.full_like(x, 1 + 2j),
}
BINARY: dict[str, Function] = {
    "add": torch.add,
    "sub, alpha": lambda x, y: torch.sub(x, y, alpha=2 - 1j),
    "mul": torch.mul,
    "div": torch.div,
    "eq": torch.eq,
    "ne": torch.ne,
    "pow": torch.pow,
    "where": lambda x, y: torch.where(x.real > 0, x, y),
    "mm": lambda x, y: x @ y.mH,
    "vdot": lambda x, y: torch.vdot(x[0], y[0]),
    "dot": lambda x, y: torch.dot(x[0], y[0]),
    "real times complex": lambda x, y: x.real * y,
    "complex": lambda x, y: torch.complex(x.real, y.imag),
    "polar": lambda x, y: torch.polar(x.abs(), y.real),
    "index_put": lambda x, y: x.index_put((torch.tensor([0, 2, 0]),), y[:3], accumulate=True),
}


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.share(1)
def test_element_wise_operators(check_table: Any, dtype: torch.dtype) -> None:
    check_table(UNARY, _numbers(dtype, 4, 5), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", COMPLEX)
def test_operators_of_two_operands(check_table: Any, dtype: torch.dtype) -> None:
    check_table(BINARY, _numbers(dtype, 4, 5), _numbers(dtype, 4, 5).flip(0), tolerance=TOLERANCE[dtype])


def test_special_values(check_table: Any) -> None:
    parts = [0.0, 1.0, -1.0, math.inf, math.nan]
    x = torch.tensor([complex(a, b) for a in parts for b in parts])
    names = ["abs", "isnan", "isinf", "isfinite", "angle", "conj_physical", "neg"]
    check_table({name: UNARY[name] for name in names}, x)
    real = torch.tensor([0.0, -0.0, 2.0, -3.0, math.inf, -math.inf, math.nan])
    check_table({"angle": torch.angle, "sgn": torch.sgn, "real": torch.real, "conj": torch.conj_physical}, real)


def test_a_constant_of_complex_numbers_is_held_by_value(check: Any) -> None:
    table = torch.tensor([1 + 2j, -3j, complex(0.5)])
    check(lambda x: [x * table], torch.randn(3))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_half_precision_is_refused_by_name(lowered: Any) -> None:
    with pytest.raises(UnsupportedOperator, match="complex32"):
        lowered(lambda x: [x.to(torch.complex32)], [torch.ones(3)])


def _rows(length: int, *, real: bool) -> torch.Tensor:
    x = _numbers(torch.complex128, 3, length)
    return x.real.contiguous() if real else x


FFT = torch.fft


NORMS = ("backward", "ortho", "forward")


@pytest.mark.parametrize("length", [1, 6, 7])
def test_transforms_of_one_dimension(check_table: Any, length: int) -> None:
    of_complex: dict[str, Function] = {}
    of_real: dict[str, Function] = {}
    for norm in NORMS:
        of_complex |= {
            f"fft, {norm}": lambda x, norm=norm: FFT.fft(x, norm=norm),
            f"ifft, {norm}": lambda x, norm=norm: FFT.ifft(x, norm=norm),
            f"hfft, {norm}": lambda x, norm=norm: FFT.hfft(x, n=9, norm=norm),
            f"irfft, {norm}": lambda x, norm=norm: FFT.irfft(x, n=2 * length, norm=norm),
            f"irfft, odd, {norm}": lambda x, norm=norm: FFT.irfft(x, n=2 * length - 1, norm=norm),
            f"fft, cut, {norm}": lambda x, norm=norm: FFT.fft(x, n=4, dim=0, norm=norm),
        }
        of_real |= {
            f"fft, {norm}": lambda x, norm=norm: FFT.fft(x, norm=norm),
            f"rfft, {norm}": lambda x, norm=norm: FFT.rfft(x, norm=norm),
            f"ihfft, {norm}": lambda x, norm=norm: FFT.ihfft(x, norm=norm),
        }
    check_table(of_complex, _rows(length, real=False), tolerance=1e-12)
    check_table(of_real, _rows(length, real=True), tolerance=1e-12)


def test_transforms_of_several_dimensions(check_table: Any) -> None:
    table: dict[str, Function] = {
        "fftn": FFT.fftn,
        "ifftn of four": lambda x: FFT.ifftn(x, norm="ortho"),
        "fft2 of the first": lambda x: FFT.fft2(x, dim=(0, -2)),
        "irfftn": lambda x: FFT.irfftn(x, s=(3, 6), dim=(1, 2)),
        "shifted": lambda x: FFT.ifftshift(FFT.fftshift(x, dim=1)),
    }
    check_table(table, _numbers(torch.complex128, 2, 3, 4, 5), tolerance=1e-12)
    check_table(
        {"rfftn": FFT.rfftn, "rfft2": lambda x: FFT.rfft2(x, dim=(2, 0))},
        _numbers(torch.float64, 2, 3, 4),
        tolerance=1e-12,
    )


def test_short_time_transforms(check_table: Any) -> None:
    window = torch.hann_window(8, dtype=torch.float64)

    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 8, hop_length=3, window=window.to(x), return_complex=True)

    check_table({"stft": spectrum}, _numbers(torch.float64, 40), tolerance=1e-12)


def test_gradients(check: Any) -> None:
    def gradient(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            loss = FFT.irfft(FFT.rfft(y) * torch.polar(torch.ones(4).to(y), torch.arange(4.0).to(y))).square().sum()
            return list(torch.autograd.grad(loss + FFT.fft(y).abs().sum(), [y]))

    from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415 - this test alone traces a backward

    x = _numbers(torch.float64, 6)
    graph = make_fx(gradient, tracing_mode="fake")(x)
    check(lambda *tensors: list(graph(*tensors)), x)
