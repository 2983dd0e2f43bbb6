"""Asks a compiler for its version, one process of a node at a time, and keeps the answer in the node tier."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from client import processes
from client.errors import ConfigurationError
from client.failures import read_tail
from client.key import normalise_compiler_version
from client.launcher.passing import compiler_environment
from client.launcher.remembered import FOLDER
from client.node.permissions import UntrustedError
from client.node.place import open_files
from client.node.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from client.launcher.remembered import Memory

VERSION_SECONDS = 120
"""Seconds that a compiler may take to say its version."""
_POLL_SECONDS = 0.05


def ask(program: str, environ: Mapping[str, str], memory: Memory) -> str:
    """Return the version that ``program`` says it has; raises `ConfigurationError` if it says none."""
    tier = memory.tier
    tree = None
    if tier is not None:
        root = Path(tier.root)
        tree = Tree(root, shared=tier.shared, files=open_files(root))
    with _turn(tree, memory.name):
        known = memory.recall()
        if known is not None:
            return known
        version = normalise_compiler_version(_said(program, environ))
        if tree is not None:
            kept = json.dumps({"stamp": memory.stamp, "version": version}).encode()
            # what cannot be kept is asked again
            with suppress(OSError, UntrustedError), tree.directory(FOLDER, make=True) as (directory, trust):
                tree.replace_file(memory.name, directory, trust, kept)
        return version


def _said(program: str, environ: Mapping[str, str]) -> str:
    with tempfile.TemporaryDirectory(prefix="neff-cache-cc-", ignore_cleanup_errors=True) as private:
        log = Path(private) / "version.log"  # both streams: releases differ in which one they use
        ended = processes.run(
            [program, "--version"],
            environ=compiler_environment(environ),
            directory=Path(private),
            log=log,
            seconds=VERSION_SECONDS,
        )
        if ended.returncode is None:
            raise ConfigurationError(f"`{program} --version` gave no answer within {VERSION_SECONDS} s")
        return read_tail(log)


@contextmanager
def _turn(tree: Tree | None, name: str) -> Iterator[None]:
    """Wait while another process asks; without a usable tier, or after `VERSION_SECONDS`, ask all the same."""
    descriptor = None
    try:
        if tree is not None:
            with suppress(OSError, UntrustedError):
                tree.claim()
                with tree.directory(FOLDER, make=True) as (directory, trust):
                    descriptor = tree.open_lock_file(f"{name}.lock", directory, trust)
                deadline = time.monotonic() + VERSION_SECONDS
                while not tree.files.lock(descriptor) and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
        yield
    finally:
        if tree is not None and descriptor is not None:
            tree.files.close(descriptor)
