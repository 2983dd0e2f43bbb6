"""Factorizations and what they give: right for single matrices and batches, real and complex, whole and singular."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import linalg

Function = Callable[..., Any]
DTYPES = [
    torch.float32,
    pytest.param(torch.float64, marks=pytest.mark.soak),
    pytest.param(torch.complex64, marks=pytest.mark.soak),
    torch.complex128,
]
DOUBLE = [pytest.param(torch.float64, marks=pytest.mark.soak), torch.complex128]
TOLERANCE = {torch.float32: 2e-4, torch.complex64: 2e-4, torch.float64: 1e-9, torch.complex128: 1e-9}


def _matrix(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def _definite(dtype: torch.dtype, *batch: int, size: int) -> torch.Tensor:
    x = _matrix(dtype, *batch, size, size)
    return x @ x.mH + torch.eye(size, dtype=dtype)


SQUARE: dict[str, Function] = {
    "lu_factor": lambda x: linalg.lu_factor_ex(x)[0],
    "pivots": lambda x: linalg.lu_factor_ex(x)[1],
    "inv": lambda x: linalg.inv_ex(x)[0],
    "det": linalg.det,
    "slogdet": lambda x: linalg.slogdet(x)[0],
    "logabsdet": lambda x: linalg.slogdet(x)[1],
    "solve": lambda x: linalg.solve_ex(x, x.mT[..., :2])[0],
    "solve, right": lambda x: linalg.solve_ex(x, x.mT[..., :2, :], left=False)[0],
    "matrix_exp": linalg.matrix_exp,
    "matrix_exp of a large one": lambda x: linalg.matrix_exp(x * 3 - 9 * torch.eye(x.shape[-1], dtype=x.dtype)),
    "matrix_power": lambda x: linalg.matrix_power(x, 3),
    "pinv": linalg.pinv,
    "pinv, Hermitian": lambda x: linalg.pinv(x + x.mH, hermitian=True),
    "matrix_rank": linalg.matrix_rank,
    "cond": linalg.cond,
    "nuclear norm": lambda x: linalg.matrix_norm(x, "nuc"),
    "solve_triangular": lambda x: linalg.solve_triangular(x + 4 * torch.eye(x.shape[-1]), x.mT, upper=True),
    "solve_triangular, unit, right": lambda x: linalg.solve_triangular(
        x / 4, x.mT, upper=False, left=False, unitriangular=True
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.share(1)
def test_square_matrices(check_table: Any, dtype: torch.dtype) -> None:
    check_table(SQUARE, _matrix(dtype, 2, 5, 5), tolerance=TOLERANCE[dtype])


@pytest.mark.soak
def test_a_matrix_of_one_element_and_a_single_one(check_table: Any) -> None:
    check_table(SQUARE, torch.tensor([[-2.5]], dtype=torch.float64), tolerance=1e-9)
    check_table(SQUARE, _matrix(torch.float64, 4, 4), tolerance=1e-9)


@pytest.mark.soak
def test_systems_of_vectors_and_of_other_batches(check: Any) -> None:
    def solutions(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        pairs = [(a[0], b[0, 0]), (a, b[:, 0]), (a[0], b), (a, b[0])]
        factors, pivots = linalg.lu_factor_ex(a)[:2]
        solved = [torch.linalg.lu_solve(factors, pivots, b, adjoint=adjoint) for adjoint in (False, True)]
        return [linalg.solve_ex(matrix, side)[0] for matrix, side in pairs] + solved

    check(solutions, _matrix(torch.complex128, 3, 4, 4), _matrix(torch.complex128, 3, 4, 4).flip(0), tolerance=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.share(1)
def test_definite_matrices(check_table: Any, dtype: torch.dtype) -> None:
    table: dict[str, Function] = {
        "cholesky": lambda x: linalg.cholesky_ex(x)[0],
        "cholesky, upper": lambda x: linalg.cholesky_ex(x, upper=True)[0],
        "cholesky_inverse": lambda x: torch.cholesky_inverse(linalg.cholesky_ex(x)[0]),
        "cholesky_solve": lambda x: torch.cholesky_solve(x[..., :2], linalg.cholesky_ex(x)[0]),
        "eigvalsh": linalg.eigvalsh,
    }
    check_table(table, _definite(dtype, 2, size=5), tolerance=10 * TOLERANCE[dtype])


def test_only_the_triangle_that_counts_is_read(check_table: Any) -> None:
    x = _definite(torch.float64, size=4)
    x[0, 3] = torch.nan
    check_table({"lower": lambda x: linalg.cholesky_ex(x)[0], "eigh": linalg.eigvalsh}, x)
    table = {
        "upper": lambda x: linalg.cholesky_ex(x, upper=True)[0],
        "eigh": lambda x: linalg.eigvalsh(x, UPLO="U"),
    }
    check_table(table, x.T.contiguous())


def test_failures_are_numbered_as_by_pytorch(check: Any) -> None:
    singular = torch.tensor(
        [[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 1.0, 1.0]], [[0.0] * 3] * 3, torch.eye(3).tolist()]
    )
    indefinite = torch.stack([torch.diag(torch.tensor(row)) for row in ([1.0, -1.0, 1.0], [1.0, 1.0, 0.0], [1.0] * 3)])
    check(lambda x: [linalg.inv_ex(x)[1], linalg.lu_factor_ex(x)[2], linalg.det(x)], singular)
    check(lambda x: [linalg.cholesky_ex(x)[1]], indefinite)


@pytest.mark.parametrize("shape", [(2, 5, 3), (3, 5), (1, 4)])
@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.share(1)
def test_rectangular_matrices(check_table: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    table: dict[str, Function] = {
        "lu, P": lambda x: linalg.lu(x)[0],
        "lu, L": lambda x: linalg.lu(x)[1],
        "lu, U": lambda x: linalg.lu(x)[2],
        "qr, Q": lambda x: linalg.qr(x)[0],
        "qr, R": lambda x: linalg.qr(x)[1],
        "qr, whole Q": lambda x: linalg.qr(x, mode="complete")[0],
        "qr, R alone": lambda x: linalg.qr(x, mode="r")[1],
        "geqrf": lambda x: torch.geqrf(x)[0],
        "factors": lambda x: torch.geqrf(x)[1],
        "ormqr": lambda x: torch.ormqr(*torch.geqrf(x), x),
        "ormqr, adjoint": lambda x: torch.ormqr(*torch.geqrf(x), x.mH, left=False, transpose=True),
        "svdvals": linalg.svdvals,
        "pinv": linalg.pinv,
    }
    check_table(table, _matrix(dtype, *shape), tolerance=1e-9)


def _singular_parts(x: torch.Tensor) -> list[torch.Tensor]:
    """What of a decomposition does not depend on the signs of its vectors."""
    found = []
    for full in (False, True):
        u, s, v = linalg.svd(x, full_matrices=full)
        size = s.shape[-1]
        found += [s, (u[..., :size] * s[..., None, :].to(x.dtype)) @ v[..., :size, :], u.mH @ u, v @ v.mH]
    return found


@pytest.mark.parametrize("shape", [(2, 5, 3), (3, 6)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.share(1)
def test_singular_vectors_are_orthogonal_and_rebuild_the_matrix(
    check: Any, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    check(_singular_parts, _matrix(dtype, *shape), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.share(1)
def test_a_matrix_of_low_rank_has_all_its_vectors(check: Any, dtype: torch.dtype) -> None:
    low = _matrix(dtype, 5, 2) @ _matrix(dtype, 2, 4)
    low[:, 3] = 0
    check(_singular_parts, low, tolerance=1e-7)
    check(_singular_parts, torch.zeros(3, 3, dtype=dtype), tolerance=1e-9)


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.share(1)
def test_eigenvectors_are_orthogonal_and_rebuild_the_matrix(check: Any, dtype: torch.dtype, size: int) -> None:
    def parts(x: torch.Tensor) -> list[torch.Tensor]:
        values, vectors = linalg.eigh(x)
        return [values, (vectors * values[..., None, :].to(x.dtype)) @ vectors.mH, vectors.mH @ vectors]

    x = _matrix(dtype, 2, size, size)
    check(parts, x + x.mH, tolerance=TOLERANCE[dtype])


def test_equal_eigenvalues(check: Any) -> None:
    check(lambda x: [linalg.eigvalsh(x), linalg.eigh(x)[1].abs()], torch.eye(5, dtype=torch.float64) * 3)


def test_the_module_is_portable(lowered: Any, text: Any) -> None:
    x = _definite(torch.float32, size=4)
    module = lowered(lambda x: [linalg.svdvals(x), linalg.eigvalsh(x), linalg.inv_ex(x)[0], linalg.qr(x)[1]], [x])
    assert "custom_call" not in text(module)
    assert len(module.code) < 60_000


def test_matrices_without_elements(check_table: Any) -> None:
    table: dict[str, Function] = {
        "pinv": linalg.pinv,
        "svdvals": linalg.svdvals,
        "qr": lambda x: linalg.qr(x)[0],
    }
    check_table(table, torch.empty(3, 0, dtype=torch.float64))
