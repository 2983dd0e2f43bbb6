"""Shapes that PyTorch's inference leaves open though our own rewrites do not depend on values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.inferred_strides import complete_strides
from neuron_backend.torch_private import DynamicOutputShapeException, is_op_registered_to_fake_rule, register_op_impl

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten

_CTC_LOSS = (aten._ctc_loss.default, aten._ctc_loss.Tensor)  # noqa: SLF001 - torch's names


def _alignment_shapes(
    _mode: Any,
    operator: Any,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    *_options: Any,
    **_keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss [N] and log_alpha [N, T, 2 S + 1], as `lowering.alignments` makes them."""
    del input_lengths
    concatenated = targets.dim() == 1
    if log_probs.device.type != "neuron" or (concatenated and isinstance(target_lengths, torch.Tensor)):
        raise DynamicOutputShapeException(operator)
    width = max(target_lengths, default=0) if concatenated else targets.shape[1]
    steps, batch, _ = log_probs.shape
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * width + 1)


FULL_RANK = "gels"  # the driver of `linalg_lstsq` that takes a matrix to be of full rank
WITH_VALUES = frozenset({"gelsd", "gelss"})  # those that return the singular values


def _least_squares_shapes(
    _mode: Any,
    operator: Any,
    matrix: torch.Tensor,
    right: torch.Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return shapes as `lowering.least_squares` makes them; whether there are residuals can depend on the rank."""
    del rcond
    *batch, rows, columns = matrix.shape
    vectors = right.shape == matrix.shape[:-1]
    tall = rows > columns
    known = vectors or list(right.shape[:-1]) == [*batch, rows]
    if matrix.device.type != "neuron" or not known or (tall and driver in WITH_VALUES):
        raise DynamicOutputShapeException(operator)
    sides = [] if vectors else [right.shape[-1]]
    real = matrix.dtype.to_real()
    # LAPACK solves in place of the right-hand sides, which lie by columns
    by_columns = matrix.new_empty([*batch, *sides, max(rows, columns)])[..., :columns]
    return (
        matrix.new_empty([*batch, columns]) if vectors else by_columns.mT,
        matrix.new_empty([*batch, *(sides or [1])] if tall and driver == FULL_RANK else [0], dtype=real),
        matrix.new_empty([0] if driver == FULL_RANK else batch, dtype=torch.int64),
        matrix.new_empty([*batch, min(rows, columns)] if driver in WITH_VALUES else [0], dtype=real),
    )


def complete_inference() -> None:
    """Tell PyTorch's fake tensors what these operators return on the device; on other devices it stays open."""
    rules: dict[Any, Callable[..., Any]] = {
        **dict.fromkeys(_CTC_LOSS, _alignment_shapes),
        aten.linalg_lstsq.default: _least_squares_shapes,
    }
    for operator, rule in rules.items():
        if not is_op_registered_to_fake_rule(operator):
            register_op_impl(operator)(rule)
    complete_strides()
