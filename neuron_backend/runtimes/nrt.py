"""The runtime of a Trainium or Inferentia host: ``libnrt`` through ctypes.

Written after the public headers ``nrt/nrt.h`` and ``nrt/nrt_experimental.h`` (runtime 2.x, Neuron SDK 2.33) and tested
against a library of ours that behaves as they say. **It has not run on a real device.** What the headers leave open,
and a real host must confirm: that neuronx-cc numbers the tensors of a StableHLO module ``input0 … output0 …`` in the
order of the entry function.

Tensors live on the device for one call only: inputs are copied there, outputs back.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import re
import threading
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import torch

from client import neff as container
from client._version import __version__
from client.errors import ConfigurationError, NeffCacheError, NeffError
from neuron_backend.runtimes import cpu_artifact
from neuron_backend.runtimes.signature import check_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neuron_backend.module import Signature, TensorSpec

LIBRARY: Final = "NEURON_BACKEND_LIBNRT"
DEFAULT_LIBRARIES: Final = ("libnrt.so.1", "/opt/aws/neuron/lib/libnrt.so.1")

# nrt.h
_NO_FRAMEWORK = 1
_ON_DEVICE = 0
_CORE = 0  # the first of the logical cores that NEURON_RT_VISIBLE_CORES leaves to this process
_UNUSED_COUNT = -1
# nrt_experimental.h
_INPUT = 0
_NAME_SIZE = 256
# nrt_status.h: what nrt_load answers to bytes that are no NEFF, or one of a version that it does not know
_INVALID, _UNSUPPORTED_NEFF_VERSION = 2, 10

_NUMBER = re.compile(rb"[0-9]+$")


class _TensorInfo(ctypes.Structure):
    """``nrt_tensor_info_t``."""

    _fields_ = (
        ("name", ctypes.c_char * _NAME_SIZE),
        ("usage", ctypes.c_int),
        ("size", ctypes.c_size_t),
        ("dtype", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_uint32)),
        ("ndim", ctypes.c_uint32),
    )


_PROTOTYPES: Final[Mapping[str, tuple[Any, ...]]] = {
    "nrt_init": (ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p),
    "nrt_load": (
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_void_p),
    ),
    "nrt_unload": (ctypes.c_void_p,),
    "nrt_get_model_tensor_info": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    "nrt_free_model_tensor_info": (ctypes.c_void_p,),
    "nrt_allocate_tensor_set": (ctypes.POINTER(ctypes.c_void_p),),
    "nrt_add_tensor_to_tensor_set": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    "nrt_tensor_allocate": (
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_void_p),
    ),
    "nrt_tensor_write": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t),
    "nrt_tensor_read": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t),
    "nrt_execute": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
}
"""Functions that return a status; those that return nothing stand in `_VOID`."""
_VOID: Final[Mapping[str, tuple[Any, ...]]] = {
    "nrt_close": (),
    "nrt_tensor_free": (ctypes.POINTER(ctypes.c_void_p),),
    "nrt_destroy_tensor_set": (ctypes.POINTER(ctypes.c_void_p),),
}


class NrtError(NeffCacheError):
    """A call of libnrt failed: ``status`` is its ``NRT_STATUS``, ``name`` what the library calls that."""

    def __init__(self, function: str, status: int, name: str) -> None:
        super().__init__(f"the Neuron runtime failed: {function} returned {name} ({status})")
        self.status = status
        self.name = name


class _Library:
    """libnrt, opened and initialised. Each function of `_PROTOTYPES` raises `NrtError` by itself."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self._library = library
        self.path = path
        self._pid = os.getpid()
        self._open = False
        self._functions = {name: self._checked(name, types) for name, types in _PROTOTYPES.items()}
        for name, types in _VOID.items():
            self._functions[name] = self._function(name, types, None)
        self("nrt_init", _NO_FRAMEWORK, torch.__version__.encode(), __version__.encode())
        self._open = True
        atexit.register(self.close)

    def _function(self, name: str, types: tuple[Any, ...], result: Any) -> Callable[..., Any]:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise ConfigurationError(
                f"{self.path} is no Neuron runtime of version 2: it has no {name}; set {LIBRARY} to libnrt.so.1"
            ) from None
        function.argtypes, function.restype = types, result
        return cast("Callable[..., Any]", function)

    def _checked(self, name: str, types: tuple[Any, ...]) -> Callable[..., None]:
        function = self._function(name, types, ctypes.c_int)

        def call(*arguments: Any) -> None:
            status = function(*arguments)
            if status:
                raise NrtError(name, status, self._name_of(status))

        return call

    def _name_of(self, status: int) -> str:
        name: bytes | None = self._function("nrt_get_status_as_str", (ctypes.c_int,), ctypes.c_char_p)(status)
        return name.decode() if name else "an unknown status"

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child: the device belongs to the process that initialised it."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this process was forked after its parent had opened the Neuron device, which only the parent can use: "
                "start it with the 'spawn' method"
            )

    def __call__(self, function: str, *arguments: Any) -> None:
        self._functions[function](*arguments)

    def make(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function whose last argument takes a handle to what it made; return the handle."""
        handle = ctypes.c_void_p()
        self(function, *arguments, ctypes.byref(handle))
        return handle

    def unload(self, model: ctypes.c_void_p) -> None:
        """Unload a model, unless that is past or another process's."""
        if self._open and os.getpid() == self._pid:
            self("nrt_unload", model)

    def close(self) -> None:
        """Give the device back, at the end of the process."""
        if self._open and os.getpid() == self._pid:
            self._open = False
            self("nrt_close")


class NrtRuntime:
    """`neuron_backend.runtimes.base.Runtime` on this host's Neuron device, its first logical core.

    The library is ``NEURON_BACKEND_LIBNRT``, else ``libnrt.so.1`` where the linker or AWS's packages have it. Raises
    `ConfigurationError` if there is none, `NrtError` if the device does not start.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._library = _open(environ)

    def load(self, neff: bytes, signature: Signature) -> NrtExecutable:
        """Load a NEFF that neuronx-cc made.

        Raises `NeffError` if it is none, or its tensors are not the signature's; `NrtError` if the device cannot take
        it; RuntimeError in a forked child.
        """
        self._library.check_process()
        if container.validate(neff).name == cpu_artifact.NAME:
            raise NeffError("this NEFF holds code of the CPU stand-in: a Neuron device cannot run it")
        try:
            model = self._library.make("nrt_load", neff, len(neff), _CORE, _UNUSED_COUNT)
        except NrtError as error:
            if error.status in (_INVALID, _UNSUPPORTED_NEFF_VERSION):
                raise NeffError(f"the Neuron runtime does not take this NEFF: {error.name}") from error
            raise
        try:
            return NrtExecutable(self._library, model, signature)
        except BaseException:
            self._library.unload(model)
            raise


class NrtExecutable:
    """`neuron_backend.runtimes.base.Executable` on a Neuron device; unloaded when nobody holds it any more."""

    def __init__(self, library: _Library, model: ctypes.c_void_p, signature: Signature) -> None:
        self._library = library
        self._model = model
        self._signature = signature
        inputs, outputs = _tensors_of(library, model)
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

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy ``inputs`` to the device, run, and copy the outputs back into fresh host tensors.

        Raises ValueError before anything runs if ``inputs`` are not the signature's, `NrtError` if the device fails,
        and RuntimeError in a forked child.
        """
        self._library.check_process()
        check_inputs(self._signature, inputs)
        library = self._library
        outputs = [torch.empty(spec.shape, dtype=spec.dtype) for spec in self._signature.outputs]
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
        tensor = self._library.make("nrt_tensor_allocate", _ON_DEVICE, _CORE, host.nbytes, name)
        stack.callback(self._library, "nrt_tensor_free", ctypes.byref(tensor))
        return tensor

    def _tensor_set(self, stack: ExitStack, tensors: list[tuple[bytes, ctypes.c_void_p]]) -> ctypes.c_void_p:
        """Return a set of ``tensors`` by name; ``stack`` frees it."""
        tensor_set = self._library.make("nrt_allocate_tensor_set")
        stack.callback(self._library, "nrt_destroy_tensor_set", ctypes.byref(tensor_set))
        for name, tensor in tensors:
            self._library("nrt_add_tensor_to_tensor_set", tensor_set, name, tensor)
        return tensor_set


def _tensors_of(library: _Library, model: ctypes.c_void_p) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Return the sizes in bytes of a model's inputs and outputs, by name (``nrt_tensor_info_array_t``)."""
    array = library.make("nrt_get_model_tensor_info", model)
    try:
        address = array.value or 0
        count = ctypes.c_uint64.from_address(address).value
        infos = (_TensorInfo * count).from_address(address + ctypes.sizeof(ctypes.c_uint64))
        inputs = {bytes(info.name): int(info.size) for info in infos if info.usage == _INPUT}
        outputs = {bytes(info.name): int(info.size) for info in infos if info.usage != _INPUT}
    finally:
        library("nrt_free_model_tensor_info", array)
    return inputs, outputs


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


class _Process:
    """This process's libraries by path: nrt_init must be called once."""

    lock = threading.Lock()
    libraries: ClassVar[dict[str, _Library]] = {}


def _open(environ: Mapping[str, str]) -> _Library:
    """Return the library, opened and initialised at the first call."""
    wanted = environ.get(LIBRARY)
    paths = (wanted,) if wanted else DEFAULT_LIBRARIES
    with _Process.lock:
        for path in paths:
            if path in _Process.libraries:
                return _Process.libraries[path]
        reasons = []
        for path in paths:
            try:
                library = ctypes.CDLL(path)
            except OSError as error:
                reasons.append(str(error))
                continue
            return _Process.libraries.setdefault(path, _Library(library, path))
    raise ConfigurationError(
        f"no Neuron runtime: {'; '.join(reasons)}. Install aws-neuronx-runtime-lib, set {LIBRARY} to its libnrt.so.1, "
        "or set NEURON_BACKEND_RUNTIME=cpu for the stand-in"
    )
