"""The launcher as a file: a few lines that start :mod:`client.launcher.start` in the leanest interpreter there is.

``-I -S``: neither ``PYTHONPATH`` nor the working directory nor ``site`` can put another ``client`` in our place, and
nothing is imported for them. Our own folders come last on the path, so that nothing in them hides the standard library.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from client._version import __version__
from client.compiler_path import LAUNCHER_MARK, NAME, is_launcher
from client.errors import ConfigurationError

_PACKAGES = ("client", "rfc8785", "zstandard", "cryptography")  # where they lie is where the launcher looks
_LONGEST_SHEBANG = 127  # what older kernels read of a first line


def render() -> str:
    """Return the launcher's text for the interpreter and the installation that run now."""
    specs = (find_spec(name) for name in _PACKAGES)
    paths = list(dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin))
    return (
        f"{_first_lines(str(Path(sys.executable).absolute()))}"
        f"# {LAUNCHER_MARK.decode()} {__version__}: finds the real {NAME} on PATH; see `neff-cache launcher`\n"
        "import gc, sys\n"
        "gc.disable()  # a hit makes no garbage worth a millisecond of looking for it\n"
        f"sys.path += {paths!r}\n"
        "from client.launcher.start import main\n"
        "main()\n"
    )


def install(directory: Path) -> Path:
    """Put the launcher into ``directory``, whole, and return its path.

    Replaces an older launcher. Raises `ConfigurationError` if another program of that name lies there, or if it cannot
    be written.
    """
    path = directory / NAME
    if (path.exists() or path.is_symlink()) and not is_launcher(str(path)):
        raise ConfigurationError(
            f"{path} is another program, which the launcher must not replace: name another directory, and put it"
            " before this one on PATH"
        )
    temporary = directory / f".{NAME}-{os.getpid()}-{os.urandom(6).hex()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(render())
            temporary.chmod(0o755)  # a launcher in an image is for all of its users
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the launcher cannot be written to {path} ({error.strerror})") from error
    return path


def uninstall(directory: Path) -> bool:
    """Remove the launcher from ``directory``; False if none lies there.

    Raises `ConfigurationError` if the program there is another, or cannot be removed.
    """
    path = directory / NAME
    if not path.exists() and not path.is_symlink():
        return False
    if not is_launcher(str(path)):
        raise ConfigurationError(f"{path} is no launcher of neff-cache: it is left as it is")
    try:
        path.unlink()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be removed ({error.strerror})") from error
    return True


def private_directory(cache_home: Path, temporary: Path) -> Path:
    """Return a directory of this user that holds the launcher and nothing else, for one `exec` or many.

    It lies below ``cache_home``, or where that cannot be written, below ``temporary``. Raises `ConfigurationError`.
    """
    wanted = cache_home / "neff-cache" / "launcher"
    with suppress(ConfigurationError, OSError):
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = wanted.stat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            current = wanted / NAME
            if not current.is_file() or current.read_text() != render():
                install(wanted)
            return wanted
    fallback = temporary / f"neff-cache-launcher-{os.urandom(8).hex()}"
    try:
        fallback.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigurationError(
            f"there is no place for the launcher: neither {wanted} nor {fallback} can be written;"
            " set XDG_CACHE_HOME or TMPDIR to a directory of yours"
        ) from error
    install(fallback)
    return fallback


def _first_lines(interpreter: str) -> str:
    """Return what makes the kernel start ``interpreter`` with ``-I -S``."""
    line = f"#!{interpreter} -IS"
    if len(line) <= _LONGEST_SHEBANG and not any(blank in interpreter for blank in " \t\n"):
        return f"{line}\n"
    # for the shell an exec, for Python a string without effect
    quoted = interpreter.replace("'", "'\"'\"'")
    return f"#!/bin/sh\n'''exec' '{quoted}' -IS \"$0\" \"$@\"\n' '''\n"
