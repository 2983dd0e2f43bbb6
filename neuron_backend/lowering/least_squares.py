"""Least squares: by a QR factorization where the matrix is said to be of full rank, else by singular values."""

from __future__ import annotations

import torch

from neuron_backend.inferred_shapes import FULL_RANK, WITH_VALUES
from neuron_backend.lowering.rewriting import rewrites


def _of_full_rank(matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Solve R x = Q^H b; with more unknowns than equations, the shortest solution, by A^H = Q R."""
    if matrix.shape[-2] >= matrix.shape[-1]:
        orthogonal, triangle = torch.linalg.qr(matrix)
        result: torch.Tensor = torch.linalg.solve_triangular(triangle, orthogonal.mH @ right, upper=True)
    else:
        orthogonal, triangle = torch.linalg.qr(matrix.mH)
        result = orthogonal @ torch.linalg.solve_triangular(triangle.mH, right, upper=False)
    return result


@rewrites("aten.linalg_lstsq.default")
def _least_squares(
    matrix: torch.Tensor, right: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return solution, residuals, rank and singular values, empty where the driver has none.

    As on the CPU, a driver that is not named finds the rank and gives no residuals.
    """
    rows, columns = matrix.shape[-2:]
    vectors = right.shape == matrix.shape[:-1]
    sides = right.unsqueeze(-1) if vectors else right
    none = matrix.new_empty(0, dtype=matrix.dtype.to_real())
    if driver == FULL_RANK:
        solution = _of_full_rank(matrix, sides)
        residuals = (sides - matrix @ solution).abs().square().sum(-2) if rows > columns else none
        return _as_lapack_lies(solution, matrix, vectors), residuals, none.to(torch.int64), none
    left, sizes, adjoint = torch.linalg.svd(matrix, full_matrices=False)
    bound = torch.finfo(matrix.dtype).eps * max(rows, columns) if rcond is None else rcond
    counts = sizes > bound * sizes[..., :1]
    inverse = torch.where(counts, 1 / sizes, 0).to(matrix.dtype)
    solution = adjoint.mH @ (inverse.unsqueeze(-1) * (left.mH @ sides))
    values = sizes if driver in WITH_VALUES else none
    return _as_lapack_lies(solution, matrix, vectors), none, counts.sum(-1), values


def _as_lapack_lies(solution: torch.Tensor, matrix: torch.Tensor, vectors: bool) -> torch.Tensor:
    """Return the solution by columns, in the memory of right-hand sides, of which there may be more."""
    if vectors:
        return solution.squeeze(-1)
    rows, columns = matrix.shape[-2:]
    by_columns = solution.mT.contiguous()
    if rows > columns:
        by_columns = torch.nn.functional.pad(by_columns, (0, rows - columns))
    return by_columns[..., :columns].mT
