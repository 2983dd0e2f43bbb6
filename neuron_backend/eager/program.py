"""Run a compiled program on a call's tensors: the path that every operator takes from its second call on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.eager import random, scalars, signature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neuron_backend.eager.signature import Call
    from neuron_backend.layout import Layout
    from neuron_backend.runtimes.base import Executable

_as_cpu_contiguous = torch.ops.neuron_device.as_cpu_contiguous.default
_from_cpu = torch.ops.neuron_device.from_cpu.default
_offer = torch.ops.neuron_device.offer.default
_store = torch.ops.neuron_device.store.default

_NEW, _MISSING, _LIST = -1, -2, -3


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded program, and how a call fits to its inputs and outputs.

    ``inputs`` are positions among the call's tensors, each given with its axes in the order of ``orders``; then come
    the call's numbers, in the types ``numbers``, if there are any; then, if it takes ``draws`` steps of the generator,
    seed and offset. Outputs are new tensors, then the values of the tensors that the call writes; in memory they lie as
    ``layouts`` says. None stands for plain order. ``returns`` are those of `Traced.returns`.
    With ``checks`` what the device library runs has their flag as its last output (`neuron_backend.value_checks`).
    """

    executable: Executable
    inputs: tuple[int, ...]
    orders: tuple[tuple[int, ...] | None, ...]
    numbers: tuple[torch.dtype, ...]
    returns: tuple[int | bool | list[bool], ...]
    layouts: tuple[Layout | None, ...]
    draws: int
    checks: int

    def run(self, call: Call) -> Any:
        """Run the program on the call's tensors, write the written ones, and return the results."""
        tensors = call.tensors
        values = _as_cpu_contiguous(
            [
                tensors[position] if order is None else tensors[position].permute(order)
                for position, order in zip(self.inputs, self.orders, strict=True)
            ]
        )
        if self.numbers:
            values += [scalars.tensor(*each) for each in zip(call.numbers, self.numbers, strict=True)]
        if self.draws:
            values += random.seed_and_offset(call, self.draws)
        outputs = [
            output if layout is None else output.as_strided(layout.shape, layout.strides)
            for output, layout in zip(self.executable(values), self.layouts, strict=True)
        ]
        if call.written:
            new = len(outputs) - len(call.written)
            outputs, stored = outputs[:new], outputs[new:]
            _store([tensors[position] for position in call.written], stored)
        device = signature.device_of(call) if outputs else 0
        fresh = iter(outputs)
        if len(self.returns) == 1:
            return _result(call, self.returns[0], fresh, device)
        return tuple(_result(call, kind, fresh, device) for kind in self.returns) or None

    def offer(self, call: Call) -> None:
        """Let the device library run the calls that are like ``call`` from now on, if it can."""
        direct = self.executable.direct
        returns = [_code(kind) for kind in self.returns]
        if direct is None or None in returns:
            return
        _offer(
            [id(each) for each in direct],
            list(self.inputs),
            # the library takes integers as they are
            next(
                (dtype for dtype in self.numbers if dtype.is_floating_point), self.numbers[0] if self.numbers else None
            ),
            self.draws,
            returns,
            [
                torch.empty(spec.shape, dtype=spec.dtype, device="meta")
                if layout is None
                else torch.empty_strided(layout.shape, layout.strides, dtype=spec.dtype, device="meta")
                for spec, layout in zip(self.executable.signature.outputs, self.layouts, strict=True)
            ],
            call.written,
            len(call.tensors),
            len(call.numbers),
            signature.device_of(call),
            self.checks,
        )


def _code(kind: int | bool | list[bool]) -> int | None:
    """Return an element of `Program.returns` as device/warm.cpp has it, or None: it knows no lists with gaps."""
    if isinstance(kind, list):
        return _LIST - len(kind) if all(kind) else None
    if isinstance(kind, bool):
        return _NEW if kind else _MISSING
    return kind


def _result(call: Call, kind: int | bool | list[bool], fresh: Iterator[torch.Tensor], device: int) -> Any:
    if kind is True:
        return _from_cpu(next(fresh), device)
    if kind is False:
        return None
    if isinstance(kind, list):
        return [_from_cpu(next(fresh), device) if there else None for there in kind]
    return signature.argument(call, kind)
