"""The node tier: whose it is, whether it can be written, how much room there is."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from client.doctor.base import Finding, note, ok, problem
from client.node.permissions import Trust, UntrustedError
from client.node.place import ADVICE, open_files
from client.node.tree import Tree
from client.node.watched import WatchedFiles
from client.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from client.doctor.base import Surroundings

_FREE_BYTES = 1 << 30
_FREE_INODES = 0.02


def check(surroundings: Surroundings) -> Iterator[Finding]:
    """Look at the directory as a job would, without making it."""
    settings = surroundings.settings
    root = settings.node_dir
    if root is None:
        yield problem("there is no node tier", "set NEURON_CACHE_NODE_DIR to a directory on a local disk")
        return
    files = open_files(root)
    if isinstance(files, WatchedFiles) and files.place.is_given_up:
        yield problem(f"{root} does not answer, as if a network file system were gone", ADVICE)
        return
    try:
        status = root.lstat()
    except FileNotFoundError:
        yield from _not_made(root)
        return
    except OSError as error:
        yield problem(f"{root} cannot be looked at: {error.strerror}", "set NEURON_CACHE_NODE_DIR to another directory")
        return
    mode = stat.S_IMODE(status.st_mode)
    shown = f"{root}, owner {status.st_uid}, group {status.st_gid}, mode {mode:04o}"
    signed = settings.signature_mode == "require"
    tree = Tree(root, shared=settings.node_shared, files=files, signed=signed)
    try:
        Trust.of_tier(status, shared=settings.node_shared, path=str(root), signed=signed)
        tree.check()
        with tree.directory():
            pass
    except UntrustedError as error:
        yield problem(f"{shown} is refused: {error}", "jobs here have no node tier until this is changed")
        return
    except FileNotFoundError:
        pass  # a directory that was made and not used yet
    except OSError as error:
        yield problem(f"{shown} cannot be used: {error.strerror}", "set NEURON_CACHE_NODE_DIR to another directory")
        return
    if os.access(root, os.W_OK | os.X_OK):
        yield ok(shown)
    else:
        yield note(f"{shown} can only be read", "entries in it are used, and nothing is added")
    yield from _room(root, settings.node_max_bytes)


def _not_made(root: Path) -> Iterator[Finding]:
    parent = next(folder for folder in root.parents if folder.exists())
    if os.access(parent, os.W_OK | os.X_OK):
        yield ok(f"{root} is not there yet; the first job makes it")
        yield from _room(parent, 0)
    else:
        yield problem(
            f"{root} is not there and cannot be made in {parent}",
            "set NEURON_CACHE_NODE_DIR to a directory that this user can write",
        )


def _room(path: Path, bound: int) -> Iterator[Finding]:
    space = os.statvfs(path)
    free = space.f_bavail * space.f_frsize
    text = f"{size_text(free)} free on its disk" + (f", bounded at {size_text(bound)}" if bound else "")
    if free < _FREE_BYTES:
        yield problem(text, "free some, or set NEURON_CACHE_NODE_DIR to another disk")
    else:
        yield ok(text)
    if space.f_files and space.f_favail < space.f_files * _FREE_INODES:
        yield problem(
            f"{space.f_favail} of {space.f_files} inodes are free on its disk",
            "remove small files, or set NEURON_CACHE_NODE_DIR to another disk",
        )
