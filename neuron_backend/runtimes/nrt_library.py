"""libnrt through ctypes: its functions, statuses and structures, and nothing about tensors of PyTorch.

Written after the public headers ``nrt/nrt.h``, ``nrt/nrt_status.h`` and ``nrt/nrt_experimental.h`` (runtime 2.x, Neuron
SDK 2.33).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import torch

from client._version import __version__
from client.errors import ConfigurationError, NeffCacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LIBRARY: Final = "NEURON_BACKEND_LIBNRT"
DEFAULT_LIBRARIES: Final = ("libnrt.so.1", "/opt/aws/neuron/lib/libnrt.so.1")

# nrt.h
_NO_FRAMEWORK = 1
ON_DEVICE = 0
CORE = 0  # the first of the logical cores that NEURON_RT_VISIBLE_CORES leaves to this process
UNUSED_COUNT = -1
# nrt_experimental.h
_INPUT = 0
_NAME_SIZE = 256
# nrt_status.h: what nrt_load answers to bytes that are no NEFF, or one of a version that it does not know
INVALID, UNSUPPORTED_NEFF_VERSION = 2, 10


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


class Library:
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
        """Call a function by name; raises `NrtError` if it returns anything but success."""
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


def tensors_of(library: Library, model: ctypes.c_void_p) -> tuple[dict[bytes, int], dict[bytes, int]]:
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


class _Process:
    """This process's libraries by path: nrt_init must be called once."""

    lock = threading.Lock()
    libraries: ClassVar[dict[str, Library]] = {}


def open_library(environ: Mapping[str, str]) -> Library:
    """Return the library, opened and initialised at the first call."""
    wanted = environ.get(LIBRARY, "").strip()
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
            return _Process.libraries.setdefault(path, Library(library, path))
    raise ConfigurationError(
        f"no Neuron runtime: {'; '.join(reasons)}. Install aws-neuronx-runtime-lib, set {LIBRARY} to its libnrt.so.1, "
        "or set NEURON_BACKEND_RUNTIME=cpu for the stand-in"
    )
