"""Special functions agree with PyTorch's over their whole range, at its edges and beyond."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import special

Function = Callable[..., torch.Tensor]
FLOATS = [torch.float32, pytest.param(torch.float64, marks=pytest.mark.soak)]
RELATIVE = {torch.float32: 5e-5, torch.float64: 1e-9}
EDGES = [0.0, -0.0, 1.0, -1.0, 1e-6, -1e-6, 1e-30, 5.0, 8.0, 2.0, 2.09, -2.09, 104.0, math.inf, -math.inf, math.nan]

ONE: dict[str, Function] = {
    name: getattr(special, name)
    for name in [
        *("i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "spherical_bessel_j0"),
        *("modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1"),
        *("scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "airy_ai", "ndtri", "erfcx", "log_ndtr"),
        *("digamma", "gammaln", "erfinv", "entr"),
    ]
}


def _line(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat(
        [
            torch.linspace(-11.9, 12.1, 161, dtype=dtype),
            torch.linspace(-90, 90, 37, dtype=dtype),
            torch.tensor(EDGES, dtype=dtype),
        ]
    )


def _close(got: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """Compare relative to the size of the number, or of the wave that it is on."""
    allowed = RELATIVE[got.dtype]
    floor = 0.1 if name.startswith(("bessel", "airy", "digamma", "gammaln")) else 1e-30
    assert torch.equal(got.isnan(), expected.isnan()), name
    infinite = expected.isinf()
    assert torch.equal(got[infinite], expected[infinite]), name
    finite = expected.isfinite()
    error = (got - expected).abs()[finite] / (expected.abs()[finite] + floor)
    assert error.max() < allowed, f"{name}: {error.max()}"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.share(1)
def test_functions_of_one_number(lowered: Any, run_xla: Any, dtype: torch.dtype) -> None:
    x = _line(dtype)

    def everything(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in ONE.values()]

    results = run_xla(lowered(everything, [x]), [x])
    for name, got, expected in zip(ONE, results, everything(x), strict=True):
        _close(got, expected, name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_polygamma_and_zeta(lowered: Any, run_xla: Any, dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-4.3, 15.2, 60, dtype=dtype), torch.tensor([1.0, 0.0, -1.0, -2.0], dtype=dtype)])

    def everything(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.polygamma(order, x) for order in (2, 3, 4)] + [special.zeta(x, 2.5), special.zeta(3.0, x)]

    results = run_xla(lowered(everything, [x]), [x])
    for position, (got, expected) in enumerate(zip(results, everything(x), strict=True)):
        _close(got, expected, str(position))
    positive = x[x > 0]
    (got,) = run_xla(lowered(lambda x: [torch.polygamma(1, x)], [positive]), [positive])
    _close(got, torch.polygamma(1, positive), "trigamma")


@pytest.mark.parametrize("dtype", FLOATS)
def test_incomplete_gamma_functions(check_table: Any, dtype: torch.dtype) -> None:
    size = 4000
    generator = torch.Generator().manual_seed(0)
    a = (torch.rand(size, dtype=dtype, generator=generator) * 8 - 2).exp()
    x = a * torch.randn(size, dtype=dtype, generator=generator).exp()
    edges = [0, 0, 1, 2, math.inf, math.inf, math.nan, -1, 3.0], [0, 1, 0, math.inf, 1, math.inf, 1, 1, math.nan]
    a, x = (torch.cat([line, torch.tensor(edge, dtype=dtype)]) for line, edge in zip((a, x), edges, strict=True))
    table = {"lower": special.gammainc, "upper": special.gammaincc}
    check_table(table, a, x, tolerance=2e-5 if dtype == torch.float32 else 1e-8)


POLYNOMIALS = [name for name in dir(special) if "_polynomial_" in name]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.share(1)
def test_orthogonal_polynomials(check_table: Any, dtype: torch.dtype) -> None:
    shape = (40, 14)
    x = torch.linspace(-1.45, 1.5, 40, dtype=dtype)[:, None].expand(shape).contiguous()
    n = torch.arange(-1, 13, dtype=dtype).expand(shape).contiguous()
    table: dict[str, Function] = {name: getattr(special, name) for name in POLYNOMIALS}
    table |= {f"{name}, one degree": lambda x, _n, name=name: getattr(special, name)(x, 3) for name in POLYNOMIALS}
    check_table(table, x, n, tolerance=1e-4 if dtype == torch.float32 else 1e-10)
    assert len(POLYNOMIALS) >= 12


def test_a_degree_that_is_no_number(check_table: Any) -> None:
    n = torch.tensor([math.nan, math.inf, -math.inf, 2.9, -0.5, 0.5])
    check_table({"t": special.chebyshev_polynomial_t, "p": special.legendre_polynomial_p}, torch.full_like(n, 1.25), n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_mantissa_and_exponent(check: Any, dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    values = [0.0, -0.0, 1.0, -1.0, 0.75, 3.0, -1e4, tiny, -tiny / 2, tiny / 8, math.inf, -math.inf, math.nan]
    check(lambda x: list(torch.frexp(x)), torch.tensor(values, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_common_divisors_and_multiples(check_table: Any, dtype: torch.dtype) -> None:
    a, b = torch.meshgrid(torch.arange(12).to(dtype), torch.tensor([0, 1, 4, 6, 9, 10]).to(dtype), indexing="ij")
    a, b = a.contiguous(), b.contiguous()
    check_table({"gcd": torch.gcd, "lcm": torch.lcm}, a, b)
    if dtype != torch.uint8:
        check_table({"gcd": torch.gcd, "lcm": torch.lcm}, -a, b)


def test_16_bit_floats_are_computed_in_single_precision(check_table: Any) -> None:
    x = torch.linspace(0.125, 6, 40, dtype=torch.bfloat16)
    names = ["i0", "i1", "i0e", "i1e", "digamma"]
    check_table({name: ONE[name] for name in names}, x)


def test_integers_and_empty_and_rank_0(check_table: Any) -> None:
    table = {name: ONE[name] for name in ("i0", "bessel_j0", "erfcx", "airy_ai")}
    check_table(table, torch.arange(6), tolerance=1e-5)
    check_table(table, torch.tensor(2.5), tolerance=1e-5)
    check_table(table, torch.empty(0, 3))
