"""The environment variables that a compile depends on: which go into the key, and which a compiler is started with.

===  ========  ====================================================  ==========================================
row  name      variables                                             in the key
===  ========  ====================================================  ==========================================
1    RESOLVED  `RESOLVED`                                            as ``target`` and ``logical_cores`` only
2    WORDS     ``NEURON_CC_FLAGS``                                   as the words really in the command line
3    ALWAYS    ``XLA_FLAGS`` without dump words                      stand-in ``extra.xla_flags``; launcher
                                                                     ``extra.env``
4    PROCESS   `PROCESS`                                             never
5    NEVER     `NEVER_PREFIXES`, `NEVER_NAMES`, `NEVER_PARTS`        never
6    OTHER     any other ``NEURON_*``, ``XLA_*``, ``NKI_*``          launcher: ``extra.env``, with one warning; the
                                                                     values of all but `SHOWN` as digests
===  ========  ====================================================  ==========================================

The first row that fits decides. Our own backends start a compiler with rows 1, 3 and 4 alone (`scrubbed`), so that
ranks whose environments differ make one key; the launcher keeps its caller's environment and keys `keyed_environment`.
"""

from __future__ import annotations

import os
import re
from enum import IntEnum

TYPE_CHECKING = False  # neither typing nor pathlib is imported here: a hit of the launcher has no time for them
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    from client.errors import ConfigurationError

TARGET: Final = "NEURON_PLATFORM_TARGET_OVERRIDE"
LOGICAL_CORES: Final = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
WORDS: Final = "NEURON_CC_FLAGS"
XLA_FLAGS: Final = "XLA_FLAGS"

RESOLVED: Final = frozenset({TARGET, *LOGICAL_CORES})
PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH")
FIXED: Final[Mapping[str, str]] = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
PROCESS: Final = frozenset({*PASSED_ON, *FIXED, "HOME", "TMPDIR", "NPROC"})
NEVER_PREFIXES: Final = (
    "NEURON_RT_",
    "NEURON_PJRT_",
    "NEURON_CACHE_",
    "NEURON_BACKEND_",
    "NEURON_COMPILE_CACHE_",
    "NEURON_COMPILATION_CACHE_",
    "NEURON_LIBTORCH_",
    "NEURON_PARALLEL_COMPILE_",
)
NEVER_NAMES: Final = frozenset({"NEURON_EXTRACT_GRAPHS_ONLY", "XLA_IR_DEBUG", "XLA_HLO_DEBUG"})
# Whole words of a name: NEURON_LOG_LEVEL speaks of logs, NEURON_LOGICAL_… does not.
NEVER_PARTS: Final = frozenset({"DUMP", "LOG", "DIR", "CACHE"})
OTHER_PREFIXES: Final = ("NEURON_", "XLA_", "NKI_")

# The variables of row 6 whose values a key document shows: the Neuron SDK and XLA document them, and what they say is
# no secret. Whoever may read a project reads its key documents, and any other name may hold a token.
SHOWN: Final = frozenset(
    {
        "NEURON_CC_PIPELINE_FACTOR", "NEURON_CUSTOM_SILU", "NEURON_DISABLE_BOUNDARY_MARKER",
        "NEURON_ENABLE_INT_MATMUL_DOWNCAST", "NEURON_ENABLE_NOSEED_DROPOUT", "NEURON_FUSE_SOFTMAX",
        "NEURON_INTERNAL_TRANSFER_ALL_PARAMETERS_WITH_STATIC_RING", "NEURON_MOVE_ALL_GATHER_WHILE_LOOP",
        "NEURON_TRANSFER_ALL_PARAMETERS_WITH_STATIC_RING", "NEURON_TRANSFER_WITH_STATIC_RING_OPS",
        "NEURON_USE_LOAD_COLLECTIVES", "NEURON_WHILE_LOOP_UNROLL", "NKI_FRONTEND", "NKI_PLATFORM_TARGET",
        "XLA_DISABLE_FUNCTIONALIZATION", "XLA_DOWNCAST_BF16", "XLA_DOWNCAST_FP16", "XLA_HANDLE_SPECIAL_SCALAR",
        "XLA_USE_32BIT_LONG", "XLA_USE_BF16", "XLA_USE_FP16", "XLA_USE_SPMD",
    }
)  # fmt: skip

# Words that only the wrappers around neuronx-cc understand (libneuronxla); the values say whether they take one.
WRAPPER_WORDS: Final[Mapping[str, bool]] = {
    "--no_cache": False,
    "--retry_failed_compilation": False,
    "--cache_dir": True,
    "--log_level": True,
}

# Logical cores where nothing is said (Neuron SDK: two physical cores make one logical core from Trainium 2 on).
DEFAULT_LOGICAL_CORES: Final[Mapping[str, int]] = {"trn1": 1, "inf2": 1, "trn2": 2, "trn3": 2}

_PRODUCT_NAME = "sys/class/dmi/id/product_name"
_INSTANCE = re.compile(r"(trn[1-9]|inf2)[a-z]*\.[0-9a-z-]+")
_TARGET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
# One word of XLA_FLAGS: XLA itself lets quotes hold white space.
_FLAG = re.compile(r"""(?:[^\s'"]|'[^']*'|"(?:\\.|[^"\\])*"|['"])+""")

# What Kubernetes and Docker make up from the name of a service, as NAME=VALUE; compiled when a name looks like it.
_LINK = r"(?:tcp|udp|sctp)://\S+:[0-9]+"
_ADDRESS = r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-fA-F.]*:[0-9a-fA-F:.]*|None)"
_MADE_UP = (
    rf".+_(?:SERVICE_HOST={_ADDRESS}|SERVICE_PORT(?:_[0-9A-Z_]+)?=[0-9]{{1,5}}|PORT={_LINK}"
    rf"|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:={_LINK}|_PROTO=(?:tcp|udp|sctp)|_PORT=[0-9]{{1,5}}|_ADDR={_ADDRESS}))"
)
_LOOKS_MADE_UP = ("_SERVICE_", "_PORT", "_NAME", "_ENV_")


class Row(IntEnum):
    """Rows of the table above."""

    RESOLVED = 1
    WORDS = 2
    ALWAYS = 3
    PROCESS = 4
    NEVER = 5
    OTHER = 6


def row_of(name: str) -> Row | None:
    """Return the row that decides about the variable ``name``, or None if it has nothing to do with compilers."""
    if name in RESOLVED:
        return Row.RESOLVED
    if name == WORDS:
        return Row.WORDS
    if name == XLA_FLAGS:
        return Row.ALWAYS
    if name in PROCESS:
        return Row.PROCESS
    if not name.startswith(OTHER_PREFIXES):
        return None
    never = name.startswith(NEVER_PREFIXES) or name in NEVER_NAMES or not NEVER_PARTS.isdisjoint(name.split("_"))
    return Row.NEVER if never else Row.OTHER


def is_made_up(name: str, environ: Mapping[str, str]) -> bool:
    """Whether a platform made the variable up from the name of a service, and nobody set it.

    Kubernetes gives every pod ``FOO_SERVICE_HOST``, ``FOO_PORT=tcp://…`` and more for a Service ``foo``; Docker's links
    give ``FOO_NAME`` and copies of the other container's variables as well. They differ from cluster to cluster.
    """
    if not any(part in name for part in _LOOKS_MADE_UP):
        return False
    if re.fullmatch(_MADE_UP, f"{name}={environ[name].strip()}"):
        return True
    # these have no value to go by: the address of the same name must stand beside them
    linked = re.match(r"(.+?)_(?:NAME$|ENV_)", name)
    return linked is not None and re.fullmatch(_LINK, environ.get(f"{linked[1]}_PORT", "").strip()) is not None


def scrubbed(
    environ: Mapping[str, str], *, home: str, tmpdir: str, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment that our backends start a compiler with: rows 1, 3 and 4, then ``extra``.

    ``home`` and ``tmpdir`` are private directories of this compile or worker.
    """
    kept = {name: environ[name] for name in (*sorted(RESOLVED), *PASSED_ON) if name in environ}
    flags = xla_flags_without_dumps(environ)
    if flags:
        kept[XLA_FLAGS] = flags
    return {**kept, **FIXED, "HOME": home, "TMPDIR": tmpdir, **(extra or {})}


def keyed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return rows 3 and 6 by name: what the launcher, which keeps its caller's environment, puts in ``extra.env``.

    What is not in `SHOWN` is there as ``sha256:`` and the digest of ``NAME=VALUE``: as good in a key, but not readable.
    """
    keyed = {name: environ[name] if name in SHOWN else _digest(name, environ[name]) for name in unlisted_names(environ)}
    flags = xla_flags_without_dumps(environ)
    if flags:
        keyed[XLA_FLAGS] = flags
    return keyed


def _digest(name: str, value: str) -> str:
    from client.launcher.digest import sha256  # noqa: PLC0415 - few jobs have such a variable

    return f"sha256:{sha256(os.fsencode(f'{name}={value}'))}"


def unlisted_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of row 6, sorted: the launcher's one warning lists them."""
    return sorted(name for name in environ if row_of(name) is Row.OTHER and not is_made_up(name, environ))


def compiler_words(environ: Mapping[str, str]) -> list[str]:
    """Return the words of ``NEURON_CC_FLAGS`` that reach the compiler: all but those of the wrappers around it.

    They are split at white space, with no quoting, as the Neuron stack does.
    """
    kept: list[str] = []
    words = iter(environ.get(WORDS, "").split())
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in WRAPPER_WORDS:
            kept.append(word)
        elif WRAPPER_WORDS[name] and not equals:
            next(words, None)
    return kept


def xla_flags_without_dumps(environ: Mapping[str, str]) -> str:
    """Return ``XLA_FLAGS`` with single spaces and without the words that only ask for dumps; order is kept.

    Like XLA itself, takes a value that does not begin with ``-`` as the name of a file that holds the flags. Raises
    `ConfigurationError` if that file cannot be read.
    """
    value = environ.get(XLA_FLAGS, "").strip()
    if value and not value.startswith("-"):
        try:
            value = _read_text(value)
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(
                f"{XLA_FLAGS}={value!r} begins with no '-', so it names a file of flags, and that cannot be read "
                f"({error}): expected flags such as --xla_cpu_enable_fast_math=false, or a readable file"
            ) from error
    return " ".join(word for word in _FLAG.findall(value) if "dump" not in word.partition("=")[0])


def read_instance(root: str | os.PathLike[str] = "/") -> str | None:
    """Return this host's EC2 instance type (``trn2.48xlarge``), or None where the firmware names none."""
    try:
        name = _read_text(os.path.join(root, _PRODUCT_NAME)).strip()  # noqa: PTH118 - see the imports
    except (OSError, UnicodeDecodeError):
        return None
    return name or None


def resolve_target(environ: Mapping[str, str], *, root: str | os.PathLike[str] = "/") -> str:
    """Return what to compile for: ``trn1``, ``inf2``, ``trn2`` or ``trn3``, or what the override says.

    Without ``NEURON_PLATFORM_TARGET_OVERRIDE`` it is read from the instance, found below ``root``; raises
    `ConfigurationError` if this is no Neuron instance, or if the override is no name of a target.
    """
    override = environ.get(TARGET, "").strip()
    if override:
        if not _TARGET_NAME.fullmatch(override):
            raise _unusable(f"{TARGET}={override!r} is no target: expected one like trn2")
        return override
    instance = read_instance(root)
    match = _INSTANCE.fullmatch(instance or "")
    if match is None:
        found = "names no instance type" if instance is None else f"is a {instance!r}"
        known = ", ".join(DEFAULT_LOGICAL_CORES)
        raise _unusable(
            f"no target to compile for: this host {found}, which is no Neuron instance; set {TARGET} to one of {known}"
        )
    return match[1]


def is_neuron_host(root: str | os.PathLike[str] = "/") -> bool:
    """Whether this host's firmware says that it is a Neuron instance."""
    return _INSTANCE.fullmatch(read_instance(root) or "") is not None


def resolve_logical_cores(environ: Mapping[str, str], target: str) -> int:
    """Return how many physical cores make one logical core.

    ``NEURON_LOGICAL_NC_CONFIG``, else ``NEURON_RT_VIRTUAL_CORE_SIZE``, else the default of ``target``. Raises
    `ConfigurationError` for a value that is no positive number, and for an unknown target where nothing is said.
    """
    for name in LOGICAL_CORES:
        if environ.get(name, "").strip():
            return positive_integer(environ, name, default=0)
    if target not in DEFAULT_LOGICAL_CORES:
        raise _unusable(f"how many cores make a logical core of target {target!r}? Set {LOGICAL_CORES[0]}")
    return DEFAULT_LOGICAL_CORES[target]


def positive_integer(environ: Mapping[str, str], name: str, *, default: int) -> int:
    """Return the variable ``name`` as a whole number above zero, or ``default`` where it is not set.

    Raises `ConfigurationError` for any other value.
    """
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise _unusable(f"{name}={text!r} cannot be followed: expected a whole number from 1 up")
    return value


def schedulable_cpus() -> int:
    """Return how many CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - see the imports
        return file.read()


def _unusable(message: str) -> ConfigurationError:
    from client.errors import ConfigurationError  # noqa: PLC0415 - a hit of the launcher never needs it

    return ConfigurationError(message)
