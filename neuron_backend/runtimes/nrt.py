"""The runtime of a Trainium or Inferentia host, on its ``libnrt``.

Written after AWS's public headers and tested against a library of ours that behaves as they say. **It has not run on a
real device.** What the headers leave open, and a real host must confirm: that neuronx-cc numbers the tensors of a
StableHLO module ``input0 … output0 …`` in the order of the entry function.

Tensors live on the device for one call only: inputs are copied there, outputs back.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from client import neff as container
from client.errors import NeffError
from neuron_backend.runtimes import cpu_artifact
from neuron_backend.runtimes.nrt_library import (
    CORE,
    INVALID,
    ON_DEVICE,
    UNSUPPORTED_NEFF_VERSION,
    UNUSED_COUNT,
    NrtError,
    open_library,
    tensors_of,
)
from neuron_backend.runtimes.signature import check_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neuron_backend.module import Signature, TensorSpec
    from neuron_backend.runtimes.nrt_library import Library

_NUMBER = re.compile(rb"[0-9]+$")


class NrtRuntime:
    """`neuron_backend.runtimes.base.Runtime` on this host's Neuron device, its first logical core.

    The library is ``NEURON_BACKEND_LIBNRT``, else ``libnrt.so.1`` where the linker or AWS's packages have it. Raises
    `ConfigurationError` if there is none, `NrtError` if the device does not start.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._library = open_library(environ)

    def load(self, neff: bytes, signature: Signature) -> NrtExecutable:
        """Load a NEFF that neuronx-cc made.

        Raises `NeffError` if it is none, or its tensors are not the signature's; `NrtError` if the device cannot take
        it; RuntimeError in a forked child.
        """
        self._library.check_process()
        if container.validate(neff).name == cpu_artifact.NAME:
            raise NeffError("this NEFF holds code of the CPU stand-in: a Neuron device cannot run it")
        try:
            model = self._library.make("nrt_load", neff, len(neff), CORE, UNUSED_COUNT)
        except NrtError as error:
            if error.status in (INVALID, UNSUPPORTED_NEFF_VERSION):
                raise NeffError(f"the Neuron runtime does not take this NEFF: {error.name}") from error
            raise
        try:
            return NrtExecutable(self._library, model, signature)
        except BaseException:
            self._library.unload(model)
            raise


class NrtExecutable:
    """`neuron_backend.runtimes.base.Executable` on a Neuron device; unloaded when nobody holds it any more."""

    def __init__(self, library: Library, model: ctypes.c_void_p, signature: Signature) -> None:
        self._library = library
        self._model = model
        self._signature = signature
        inputs, outputs = tensors_of(library, model)
        self._inputs = _match(inputs, signature.inputs, "input")  # one that the program does not use may be missing
        self._outputs = _match(outputs, signature.outputs, "output")
        if len(outputs) != len(signature.outputs):
            raise NeffError(
                f"this NEFF belongs to another module: it gives {len(outputs)} tensor(s), "
                f"expected {len(signature.outputs)}"
            )
        weakref.finalize(self, library.unload, model).atexit = False

    @property
    def signature(self) -> Signature:
        """What it takes and gives, as the module says."""
        return self._signature

    @property
    def direct(self) -> None:
        """Nothing: it runs from here only."""

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy ``inputs`` to the device, run, and copy the outputs back into fresh host tensors.

        Raises ValueError before anything runs if ``inputs`` are not the signature's, `NrtError` if the device fails,
        and RuntimeError in a forked child.
        """
        self._library.check_process()
        check_inputs(self._signature, inputs)
        library = self._library
        outputs = [torch.empty(spec.shape, dtype=spec.dtype, device="cpu") for spec in self._signature.outputs]
        with ExitStack() as stack:
            given = [(name, self._allocate(stack, name, inputs[index])) for index, name in self._inputs]
            made = [(name, self._allocate(stack, name, outputs[index])) for index, name in self._outputs]
            for (index, _), (_, tensor) in zip(self._inputs, given, strict=True):
                library("nrt_tensor_write", tensor, inputs[index].data_ptr(), 0, inputs[index].nbytes)
            # A set must go before the tensors in it, so it comes after them.
            library("nrt_execute", self._model, self._tensor_set(stack, given), self._tensor_set(stack, made))
            for (index, _), (_, tensor) in zip(self._outputs, made, strict=True):
                library("nrt_tensor_read", tensor, outputs[index].data_ptr(), 0, outputs[index].nbytes)
        return outputs

    def _allocate(self, stack: ExitStack, name: bytes, host: torch.Tensor) -> ctypes.c_void_p:
        """Return a device tensor as large as ``host``; ``stack`` frees it."""
        tensor = self._library.make("nrt_tensor_allocate", ON_DEVICE, CORE, host.nbytes, name)
        stack.callback(self._library, "nrt_tensor_free", ctypes.byref(tensor))
        return tensor

    def _tensor_set(self, stack: ExitStack, tensors: list[tuple[bytes, ctypes.c_void_p]]) -> ctypes.c_void_p:
        """Return a set of ``tensors`` by name; ``stack`` frees it."""
        tensor_set = self._library.make("nrt_allocate_tensor_set")
        stack.callback(self._library, "nrt_destroy_tensor_set", ctypes.byref(tensor_set))
        for name, tensor in tensors:
            self._library("nrt_add_tensor_to_tensor_set", tensor_set, name, tensor)
        return tensor_set


def _match(sizes: Mapping[bytes, int], specs: Sequence[TensorSpec], what: str) -> list[tuple[int, bytes]]:
    """Return (position in the signature, name) of a model's tensors; raise `NeffError` if they are not ``specs``."""
    matched: list[tuple[int, bytes]] = []
    for name, size in sizes.items():
        number = _NUMBER.search(name)
        index = -1 if number is None else int(number[0])
        if not 0 <= index < len(specs):
            raise NeffError(f"this NEFF belongs to another module: it has the {what} {name!r} beside {len(specs)}")
        expected = math.prod(specs[index].shape) * specs[index].dtype.itemsize
        if size != expected:
            raise NeffError(
                f"this NEFF belongs to another module: its {what} {name!r} has {size} bytes, expected {expected}"
            )
        matched.append((index, name))
    return sorted(matched)
