"""Operators that torch calls on accelerators only, in terms of operators that every device has.

The formulas of the recurrent cells are those of torch's own kernels (aten/src/ATen/native/cuda/RNN.cu); which tensors
a backward gets is in derivatives.yaml. ``workspace`` is ours to choose: only our own backward reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten


def _convolution(*arguments: Any) -> torch.Tensor:
    result: torch.Tensor = aten.convolution.default(*arguments)
    return result


def _convolution_backward(
    gradient: torch.Tensor, value: torch.Tensor, weight: torch.Tensor, *parameters: Any
) -> tuple[torch.Tensor | None, ...]:
    *_, transposed, _, groups, _ = parameters  # stride, padding, dilation, transposed, output_padding, groups, mask
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    result: tuple[torch.Tensor | None, ...] = aten.convolution_backward.default(
        gradient, value, weight, [channels], *parameters
    )
    return result


def _biased(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias


def _lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cell: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    enter, forget, change, leave = gates.chunk(4, 1)
    enter, forget, change, leave = enter.sigmoid(), forget.sigmoid(), change.tanh(), leave.sigmoid()
    new_cell = forget * cell + enter * change
    return leave * new_cell.tanh(), new_cell, torch.cat((enter, forget, change, leave), 1)


def _lstm_cell_backward(  # noqa: PLR0917 - torch's own signature
    hidden_gradient: torch.Tensor | None,
    cell_gradient: torch.Tensor | None,
    cell: torch.Tensor,
    new_cell: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    enter, forget, change, leave = workspace.chunk(4, 1)
    seen = new_cell.tanh()
    into_cell = torch.zeros_like(cell) if cell_gradient is None else cell_gradient
    leave_gradient = torch.zeros_like(cell)
    if hidden_gradient is not None:
        into_cell = into_cell + hidden_gradient * leave * (1 - seen * seen)
        leave_gradient = hidden_gradient * seen * leave * (1 - leave)
    gates = torch.cat(
        (
            into_cell * change * enter * (1 - enter),
            into_cell * cell * forget * (1 - forget),
            into_cell * enter * (1 - change * change),
            leave_gradient,
        ),
        1,
    )
    return gates, into_cell * forget, gates.sum(0) if has_bias else None


def _gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    reset_in, update_in, new_in = _biased(input_gates, input_bias).chunk(3, 1)
    reset_hidden, update_hidden, new_hidden = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    reset = (reset_in + reset_hidden).sigmoid()
    update = (update_in + update_hidden).sigmoid()
    new = (new_in + reset * new_hidden).tanh()
    return new + update * (hidden - new), torch.cat((reset, update, new, hidden, new_hidden), 1)


def _gru_cell_backward(
    gradient: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    reset, update, new, hidden, new_hidden = workspace.chunk(5, 1)
    update_gradient = gradient * (hidden - new) * update * (1 - update)
    new_gradient = gradient * (1 - update) * (1 - new * new)
    reset_gradient = new_gradient * new_hidden * reset * (1 - reset)
    into_input = torch.cat((reset_gradient, update_gradient, new_gradient), 1)
    into_hidden = torch.cat((reset_gradient, update_gradient, new_gradient * reset), 1)
    biases = (into_input.sum(0), into_hidden.sum(0)) if has_bias else (None, None)
    return into_input, into_hidden, gradient * update, *biases


def _index_put_(
    value: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,  # noqa: ARG001 - whether indices are known to be in range: it changes no value
) -> torch.Tensor:
    result: torch.Tensor = aten.index_put_.default(value, indices, values, accumulate)
    return result


def _cummax_helper(value: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
    """Write both results, which torch has given their size."""
    for out, result in zip((values, indices), aten.cummax.default(value, dim), strict=True):
        out.copy_(result)


def _cummin_helper(value: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
    for out, result in zip((values, indices), aten.cummin.default(value, dim), strict=True):
        out.copy_(result)


def _unscale_(tensors: Sequence[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
    """Take a gradient scaler's scale out of ``tensors``, and set ``found`` to 1 if any was not finite."""
    for tensor in tensors:
        found.copy_(torch.maximum(found, (~torch.isfinite(tensor)).any().to(found.dtype)))
        tensor.copy_(tensor * inverse)


def _update_scale_(  # noqa: PLR0917 - torch's own signature
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    """Let a gradient scaler's scale shrink after a step that was not finite, and grow after ``interval`` that were."""
    bad, good = found > 0, tracker + 1
    due = good == interval
    grown = scale * growth
    calm = torch.where(due & torch.isfinite(grown), grown, scale)
    scale.copy_(torch.where(bad, scale * backoff, calm))
    tracker.copy_(torch.where(bad | due, torch.zeros_like(tracker), good))
    return scale


COMPOSITES: dict[Any, Callable[..., Any]] = {
    aten.convolution_overrideable.default: _convolution,
    aten.convolution_backward_overrideable.default: _convolution_backward,
    aten._cummax_helper.default: _cummax_helper,  # noqa: SLF001 - torch's name
    aten._cummin_helper.default: _cummin_helper,  # noqa: SLF001
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale_,
    aten._amp_update_scale_.default: _update_scale_,
    aten._index_put_impl_.default: _index_put_,
    aten._thnn_fused_lstm_cell.default: _lstm_cell,  # noqa: SLF001 - torch's name
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,  # noqa: SLF001
    aten._thnn_fused_gru_cell.default: _gru_cell,  # noqa: SLF001
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,  # noqa: SLF001
}
