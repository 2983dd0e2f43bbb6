"""The one file that touches jaxlib's private API: XLA's CPU compiler and executor behind a few calls.

Used by the compiler's worker processes and by the ``cpu`` runtime. `SUPPORTED` is the range of jaxlib releases whose
``jaxlib._jax`` these calls were run against; it is the range of the ``[torch]`` extra. Knows nothing of PyTorch:
tensors pass through as DLPack capsules.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import threading
from contextlib import contextmanager
from importlib import import_module, metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from client.environment import positive_integer, schedulable_cpus
from client.errors import ConfigurationError, NeffCacheError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SUPPORTED: Final = ((0, 10), (0, 13))
"""The first supported release of jaxlib, and the first that is not."""

THREADS: Final = "NEURON_BACKEND_CPU_THREADS"

FORKED: Final = (
    "this process was forked after XLA was first used in its parent, and XLA hangs in such a child: "
    "start it with the 'spawn' method, or keep device \"neuron\" out of forked children"
)

# XLA reads this once, when its client is made: the size of its thread pools, from which the compiler also takes how
# many ways it splits a loop (but never more than the CPUs that the process may run on).
_POOL_SIZE: Final = "NPROC"

# Where the user says nothing about XLA's log, its information lines stay out of the user's terminal.
_LOG_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"
_WARNING: Final = 1

# Not jax.core, which jaxlib looks for twice at most: SciPy takes whatever stands under that name for the module.
_IMPORTS_OF_JAX: Final = ("jax._src.sharding_impls", "jax._src.named_sharding")

_MLIR_BYTECODE: Final = b"ML\xefR"
_TRIVIAL: Final = (
    "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> "
    "{ %0 = stablehlo.add %a, %a : tensor<4xf32> return %0 : tensor<4xf32> }"
)
_FEATURES = re.compile(rb"(?:[+-][0-9A-Za-z._-]+)(?:,[+-][0-9A-Za-z._-]+)*")
_WORD = re.compile(rb"[0-9A-Za-z._-]+")
_SETTING = threading.Lock()


class XlaError(NeffCacheError):
    """XLA said no. ``exhausted`` if for want of memory rather than because of the program."""

    def __init__(self, message: str, *, exhausted: bool = False) -> None:
        super().__init__(message)
        self.exhausted = exhausted


def thread_count(environ: Mapping[str, str]) -> int:
    """Return how many threads one program runs on: ``NEURON_BACKEND_CPU_THREADS``, default 1.

    Compiled code depends on it, so it is part of the key (``logical_cores``) and never taken from the host. Raises
    `ConfigurationError` if this process may not run on so many CPUs: XLA would then quietly split for fewer.
    """
    count, available = positive_integer(environ, THREADS, default=1), schedulable_cpus()
    if count > available:
        raise ConfigurationError(
            f"{THREADS}={count} cannot be followed: this process may run on {available} CPU(s); expected at most that"
        )
    return count


def jaxlib_version() -> str:
    """Return jaxlib's version; raise `ConfigurationError` if it is absent or outside `SUPPORTED`."""
    low, high = SUPPORTED
    expected = f"jaxlib >={low[0]}.{low[1]},<{high[0]}.{high[1]}"
    try:
        version = metadata.version("jaxlib")
    except metadata.PackageNotFoundError:
        raise ConfigurationError(
            f"the CPU stand-in needs {expected}, and none is installed: pip install 'neff-cache[torch]'"
        ) from None
    if not low <= tuple(int(part) for part in version.split(".")[:2]) < high:
        raise ConfigurationError(f"the CPU stand-in needs {expected}, but {version} is installed: install one of those")
    return version


class XlaClient:
    """XLA on this process's CPUs, with ``threads`` threads. Safe to use from several threads, not across a fork.

    At most one of them should be made in a process.
    """

    def __init__(self, threads: int) -> None:
        self.version = jaxlib_version()
        self.threads = threads
        self._pid = os.getpid()
        # By name: 0.1 s that only those pay who need it, and these modules are compiled ones without type information.
        api, utils, xla_client = (import_module(f"jaxlib.{name}") for name in ("_jax", "utils", "xla_client"))
        if _LOG_LEVEL not in os.environ:
            utils.absl_set_min_log_level(_WARNING)
        with _set({_POOL_SIZE: str(threads)}):
            self._client = xla_client.make_cpu_client(asynchronous=False)
        _block_imports_of_jax()
        self._api = api
        self._options = xla_client.CompileOptions
        self._device = self._client.local_devices()[0]
        self._devices = api.DeviceList((self._device,))
        self._target: str | None = None
        self._handler = _handler(api, self._device)

    def check_process(self) -> None:
        """Raise RuntimeError in a child that was forked after this client was made: XLA would hang there."""
        if os.getpid() != self._pid:
            raise RuntimeError(FORKED)

    @property
    def target(self) -> str:
        """What machine code is made for: ``cpu:<LLVM cpu>:<SHA-256 of LLVM's feature string>``.

        Read from a compiled trivial program, because LLVM, and `XLA_FLAGS` behind it, decides, not the kernel's list.
        """
        if self._target is None:
            cpu, features = read_target_machine(self._build(_TRIVIAL))
            self._target = f"cpu:{cpu}:{hashlib.sha256(features.encode()).hexdigest()}"
        return self._target

    def compile(self, code: bytes) -> bytes:
        """Compile a VHLO portable artifact to a serialized executable; raise `XlaError` if XLA refuses it."""
        if not code.startswith(_MLIR_BYTECODE):
            raise XlaError("the module is no portable artifact: it does not begin as MLIR bytecode does")
        return self._build(code)

    def _build(self, code: bytes | str) -> bytes:
        self.check_process()
        try:
            executable = self._client.compile_and_load(code, self._devices, self._options())
            return bytes(self._client.serialize_executable(executable))
        except (RuntimeError, ValueError) as error:  # XLA's own error is a RuntimeError
            text = str(error)
            raise XlaError(text, exhausted="RESOURCE_EXHAUSTED" in text) from error

    def load(self, executable: bytes) -> Program:
        """Load what `compile` made; raise `XlaError` for other bytes.

        XLA promises nothing about bytes that were tampered with: check their digest before.
        """
        self.check_process()
        try:
            loaded = self._client.deserialize_executable(executable, self._devices, None)
        except (RuntimeError, ValueError) as error:
            raise XlaError(str(error)) from error
        return Program(self, loaded, self._api, self._device, self._handler)


class Direct(NamedTuple):
    """The functions by which the device library runs a program without Python code in between.

    ``execute`` takes a list of arrays; ``to_array`` a DLPack capsule, ``device`` and None; ``results`` turns what
    ``execute`` gave, with a list of one ``handler`` for each output, into a list of arrays, whose shape and dtype are
    not to be asked for; and ``address`` gives an array's memory.
    """

    execute: Any
    handler: Any
    to_array: Any
    device: Any
    results: Any
    address: Any


class Program:
    """A loaded executable. Safe to run from several threads."""

    def __init__(self, client: XlaClient, loaded: Any, api: Any, device: Any, handler: Any) -> None:
        self._client = client
        self._execute = loaded.execute_sharded
        self._to_buffer = api.dlpack_managed_tensor_to_buffer
        self._to_capsule = api.buffer_to_dlpack_managed_tensor
        self._device = device
        results = getattr(getattr(api, "ExecuteResults", None), "consume_with_handlers", None)
        address = getattr(getattr(api, "ArrayImpl", None), "unsafe_buffer_pointer", None)
        self.direct: Direct | None = None  # a jaxlib that calls them otherwise runs programs from Python only
        if handler is not None and results is not None and address is not None:
            self.direct = Direct(self._execute, handler, self._to_buffer, device, results, address)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on DLPack capsules of contiguous host tensors and return capsules of fresh ones.

        XLA checks the number of ``inputs`` and their sizes in bytes, nothing else: dtype and shape are the caller's to
        check. A tensor whose memory is not aligned to 64 bytes is copied. Raises `XlaError`.
        """
        self._client.check_process()
        try:
            buffers = [self._to_buffer(capsule, self._device, None) for capsule in inputs]
            outputs = self._execute(buffers).disassemble_into_single_device_arrays()
            return [self._to_capsule(shards[0], None) for shards in outputs]
        except (RuntimeError, ValueError) as error:
            raise XlaError(str(error), exhausted="RESOURCE_EXHAUSTED" in str(error)) from error


def _handler(api: Any, device: Any) -> Any:
    """Return what makes an array of a program's output, or None if this jaxlib has no such thing.

    Without it jaxlib asks jax, in vain, what an array on one device is: 5 us for each output.
    """
    make, sharding = (getattr(api, name, None) for name in ("array_result_handler", "SingleDeviceSharding"))
    if make is None or sharding is None:
        return None
    # It only keeps this for jax to read, and looks at no memory by it.
    anything = SimpleNamespace(shape=(), dtype=import_module("numpy").dtype("uint8"), weak_type=False)
    try:
        return make(anything, sharding(device), committed=True, _skip_checks=True)
    except (TypeError, RuntimeError):  # a jaxlib that wants to know something else
        return None


def read_target_machine(executable: bytes) -> tuple[str, str]:
    """Return LLVM's CPU name and feature string out of a serialized executable.

    They stand in it as XLA's ``TargetMachineOptionsProto``: three length-delimited strings, the triple (field 1), the
    CPU (field 2) and the features (field 3), with nothing between them. Raises `ConfigurationError` if there is none.
    """
    for match in re.finditer(rb"\x0a", executable):
        triple, after = _string(executable, match.start(), 1)
        if triple is None or triple.count(b"-") < 2 or not _WORD.fullmatch(triple):  # noqa: PLR2004 - arch-vendor-os
            continue
        cpu, after = _string(executable, after, 2)
        if cpu is None or not _WORD.fullmatch(cpu):
            continue
        features, _ = _string(executable, after, 3)
        if features is not None and _FEATURES.fullmatch(features):
            return cpu.decode(), features.decode()
    raise ConfigurationError(
        "XLA's executables name no target machine here, so the CPU stand-in cannot tell hosts apart: "
        "install a jaxlib of the supported range"
    )


def _block_imports_of_jax() -> None:
    """Have jaxlib's own imports of jax fail at once, if jax is not installed, by the documented None in `sys.modules`.

    jaxlib tries them for every array it makes, and an import that fails searches the whole path: 37 us for each input
    and output of a call that takes 3 us. jax itself is not needed; where it is installed nothing is changed.
    """
    if importlib.util.find_spec("jax") is None:
        for name in _IMPORTS_OF_JAX:
            cast("dict[str, Any]", sys.modules).setdefault(name, None)


def _string(data: bytes, at: int, field: int) -> tuple[bytes | None, int]:
    """Read a length-delimited protobuf field at ``at``; return its bytes, or None, and where the next one begins."""
    if data[at : at + 1] != bytes([field << 3 | 2]):
        return None, at
    at += 1
    length = shift = 0
    for byte in data[at : at + 4]:
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint
            break
    found = data[at : at + length]
    return (found, at + length) if len(found) == length else (None, at)


@contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    """Have ``variables`` in the environment of this process for a moment, for C++ code that reads them there."""
    with _SETTING:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
