"""Build and find the device's C++ library; neither imports torch.

The library is built once per torch, kind of machine and source, by ``neff-cache backend build``, and only a file that
matches all of them is ever loaded: a library compiled against another torch would crash the process that loads it, and
a home folder may be shared by machines of several kinds. It uses no instruction that some CPUs of its kind lack.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COMMAND = "neff-cache backend build"

_SOURCES = Path(__file__).parent
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-Wall", "-Wextra")
_COMPILERS = ("c++", "g++", "clang++")
_BASELINES = {"x86_64": ("-march=x86-64",), "aarch64": ("-march=armv8-a",)}
"""Flags that have the last word over those in ``CXX``, such as ``-march=native``: the file may be loaded elsewhere."""
_TIME_LIMIT = 900.0
_TRY = "import sys, torch; torch.ops.load_library(sys.argv[1]); assert torch.ops.neuron_device.device_count() > 0"
_SHOWN_LINES = 20


class BuildError(Exception):
    """The device library cannot be built; the message says why and what to do."""


def source_digest() -> str:
    """Return the SHA-256 (hexadecimal) of the C++ sources and of the flags they are compiled with."""
    digest = hashlib.sha256(" ".join((*_FLAGS, *_BASELINES.get(os.uname().machine, ()))).encode())
    for path in sorted((*_SOURCES.glob("*.cpp"), *_SOURCES.glob("*.h"))):
        content = path.read_bytes()
        digest.update(f"\n{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def torch_version() -> str | None:
    """Return the version of the installed torch, or None if there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def library_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the built library that matches the installed torch and the sources here, or None.

    A library in the user's cache directory counts only if directory and file belong to this user or to root and
    nobody else can write them: it is code that this process will run.
    """
    version = torch_version()
    if version is None:
        return None
    name = _file_name(version)
    cached = _cache_directory(environ)
    # first: it is built where that of the package is missing, or cannot be loaded and not be replaced either
    if cached is not None and _is_private(cached, directory=True) and _is_private(cached / name, directory=False):
        return cached / name
    own = _package_directory() / name
    return own if own.is_file() else None


def build(*, compiler: str | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the library, compiled if none is there that can be loaded; processes that build at once compile it once.

    ``compiler`` is a command line such as ``ccache g++``; by default that of ``CXX``, else the first of ``c++``,
    ``g++`` and ``clang++`` on ``PATH``. Raises `BuildError` without a compiler, without torch, with no place to write
    to, or with the compiler's last lines if it fails. A failed build leaves nothing behind.
    """
    built = _loadable(environ)
    if built is not None:
        return built
    version = torch_version()
    torch = _torch_folder()
    if version is None or torch is None:
        raise BuildError(f"PyTorch is not installed in this Python: install it first, then run `{COMMAND}`")
    command = _compiler(compiler or environ.get("CXX"))
    broken = library_path(environ)
    if broken is not None and os.access(broken.parent, os.W_OK | os.X_OK):
        directory = broken.parent
    else:
        directory = _writable_directory(environ)
    with _locked(directory):
        found = _loadable(environ)
        if found is not None:
            return found
        target = directory / _file_name(version)
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=".building-", suffix=".so")
        os.close(handle)
        try:
            _compile(command, torch, Path(temporary))
            _try(Path(temporary))
            Path(temporary).chmod(0o700 if directory != _package_directory() else 0o755)
            Path(temporary).replace(target)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return target


def _file_name(version: str) -> str:
    return f"{version}-{_torch_build()}-{os.uname().machine}-{source_digest()[:16]}.so"


def _torch_build() -> str:
    """Return what tells two builds of one version of torch apart: 8 digits of the SHA-256 of its ``version.py``."""
    package = _torch_folder()
    try:
        content = b"" if package is None else (package / "version.py").read_bytes()
    except OSError:
        content = b""
    return hashlib.sha256(content).hexdigest()[:8]


def _torch_folder() -> Path | None:
    package = importlib.util.find_spec("torch")
    if package is None or not package.submodule_search_locations:
        return None
    return Path(package.submodule_search_locations[0])


def _loadable(environ: Mapping[str, str]) -> Path | None:
    """Return the built library if torch can load it: it may be torn, or need another C++ library than is here."""
    path = library_path(environ)
    if path is not None:
        try:
            _try(path)
        except BuildError:
            return None
    return path


def _package_directory() -> Path:
    return _SOURCES.parent / "_lib"


def _cache_directory(environ: Mapping[str, str]) -> Path | None:
    root = environ.get("XDG_CACHE_HOME", "")
    if not root.startswith("/"):  # the specification: relative paths are ignored
        home = environ.get("HOME", "")
        if not home.startswith("/"):
            return None
        root = f"{home}/.cache"
    return Path(root) / "neff-cache" / "device"


def _is_private(path: Path, *, directory: bool) -> bool:
    """Say whether ``path`` is no link, of the right type, owned by this user or root, and writable by no one else."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_DIRECTORY if directory else os.O_NONBLOCK)
    try:
        handle = os.open(path, flags)
    except OSError:
        return False
    try:
        status = os.fstat(handle)
    finally:
        os.close(handle)
    right_type = stat.S_ISDIR(status.st_mode) if directory else stat.S_ISREG(status.st_mode)
    return right_type and status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _writable_directory(environ: Mapping[str, str]) -> Path:
    package = _package_directory()
    try:
        package.mkdir(exist_ok=True)
    except OSError:
        writable = False
    else:
        writable = os.access(package, os.W_OK | os.X_OK)
    if writable:
        return package
    cached = _cache_directory(environ)
    if cached is None:
        raise BuildError(f"{package} cannot be written and neither XDG_CACHE_HOME nor HOME says where else to build")
    try:
        cached.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"neither {package} nor {cached} can be written: {error.strerror}") from error
    if not _is_private(cached, directory=True):
        raise BuildError(
            f"{cached} is no directory that only this user (or root) can write: remove it, or set XDG_CACHE_HOME"
        )
    return cached


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's build lock; the kernel drops it with its holder."""
    handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _compiler(asked: str | None) -> list[str]:
    words = shlex.split(asked) if asked else [name for name in _COMPILERS if shutil.which(name)][:1]
    if not words:
        raise BuildError(
            f"no C++ compiler found (looked for {', '.join(_COMPILERS)}): install one, for instance the package g++, "
            f"or name it in CXX, then run `{COMMAND}`"
        )
    if shutil.which(words[0]) is None:
        raise BuildError(f"the C++ compiler {words[0]!r} (from CXX) is no program that can be started")
    return words


def _compile(command: list[str], torch: Path, output: Path) -> None:
    """Compile the sources, as many at once as there are CPUs for this process, and link them."""
    # `import torch` reads this module, and then something else may be found under that name
    from client.environment import schedulable_cpus  # noqa: PLC0415

    include, libraries = torch / "include", torch / "lib"
    headers = ("-isystem", str(include), "-isystem", str(include / "torch" / "csrc" / "api" / "include"))
    baseline = _BASELINES.get(os.uname().machine, ())
    what = f"the C++ compiler {command[0]!r}"
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(schedulable_cpus()) as pool:

        def compiled(source: Path) -> str:
            made = f"{folder}/{source.stem}.o"
            _run([*command, *_FLAGS, *baseline, *headers, "-c", str(source), "-o", made], what)
            return made

        objects = list(pool.map(compiled, sorted(_SOURCES.glob("*.cpp"))))
        _run([*command, "-shared", *objects, "-o", str(output), f"-L{libraries}", "-ltorch_cpu", "-lc10"], what)


def _try(library: Path) -> None:
    """Load the library in a process of its own: one that torch cannot load would end every ``import torch`` here."""
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    _run([sys.executable, "-I", "-c", _TRY, str(library)], f"a trial load of {library}", environ)


def _run(words: list[str], what: str, environ: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIME_LIMIT,
            env=environ,
        )
    except OSError as error:
        raise BuildError(f"{what} could not be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{what} was stopped after {_TIME_LIMIT:.0f} s") from error
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_SHOWN_LINES:])
        raise BuildError(f"{what} ended with {done.returncode}:\n{last}")
