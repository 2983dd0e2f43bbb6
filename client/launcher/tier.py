"""The node tier as a hit reads it: a few system calls, and nothing imported that they do not need.

The layout and the rules of trust are those of :mod:`client.node.tier` and :mod:`client.node.permissions`. Only a whole,
verified entry is answered; everything else (damage, a setting that is out of the ordinary, counts that somebody wants)
is left to the client proper, which asks again.
"""

from __future__ import annotations

import json
import os
import time

from client.folders import base_folder
from client.launcher.digest import sha256
from client.mounts import may_stall
from client.names import DEFAULT_PROJECT, MAIN_OUTPUT, check_project
from client.node.files import Files
from client.node.permissions import Trust

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

LAYOUT = "v1"
ENTRY_FILE = "entry.json"
TOUCH_AFTER = 60.0
LARGE = 1 << 30
KIND = "cc"
_OUT_OF_THE_ORDINARY = ("SUMMARY", "RECORD")


class Tier:
    """One node tier, by the settings of ``environ``; raises ValueError for settings that mean nothing.

    ``plain`` is whether a hit may be answered from it without the client proper.
    """

    __slots__ = ("plain", "project", "root", "shared")

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.root = _root(environ)
        self.project = check_project(_setting(environ, "PROJECT") or DEFAULT_PROJECT)
        shared = _setting(environ, "NODE_SHARED").lower()
        if shared not in ("", "private", "group") or _setting(environ, "MODE").lower() not in ("", "rw", "ro"):
            raise ValueError
        self.shared = shared == "group"
        # with a list of keys signatures are checked, unless that is turned off in so many words
        signatures = _setting(environ, "SIGNATURES").lower() or _setting(environ, "TRUSTED_KEYS")
        self.plain = signatures in ("", "off") and not any(_setting(environ, name) for name in _OUT_OF_THE_ORDINARY)

    def hit(self, key: str) -> tuple[Any, bytes] | None:
        """Return entry.json of a key and the verified bytes of its program, or None."""
        described, neff = self.read((self.project, KIND, key[:2], key), (ENTRY_FILE, MAIN_OUTPUT), touch=True)
        entry = json.loads(described)
        if (entry["schema"], entry["project"], entry["kind"], entry["key"]) != (1, self.project, KIND, key):
            return None
        main = next(output for output in entry["outputs"] if output["name"] == MAIN_OUTPUT)
        if main["size"] != len(neff) or main["sha256"] != sha256(neff):
            return None
        return entry, neff

    def read(self, folders: Sequence[str], names: Sequence[str], *, touch: bool = False) -> list[bytes]:
        """Return the bytes of files in one folder of the tier.

        Raises OSError, also if they are not read within `client.stalls.LIMIT` seconds, and
        `client.node.permissions.UntrustedError`. With ``touch`` the folder's time of last use is set, as far as that is
        possible.
        """
        if not may_stall(self.root):
            return self._read(folders, names, touch=touch)
        from client.stalls import place_of  # noqa: PLC0415 - on a disk of this machine a hit does without

        return place_of(self.root).call(lambda: self._read(folders, names, touch=touch))

    def _read(self, folders: Sequence[str], names: Sequence[str], *, touch: bool) -> list[bytes]:
        files = Files()
        directory = files.open_directory(self.root)
        try:
            trust = Trust.of_tier(files.status(directory), shared=self.shared, path=self.root)
            for name in (LAYOUT, *folders):
                below = files.open_directory(name, directory)
                files.close(directory)
                directory = below
                status = files.status(directory)
                trust.check(status, name)
            contents = [_read(files, name, directory, trust) for name in names]
            if touch and time.time() - status.st_mtime > TOUCH_AFTER:
                try:
                    files.touch(directory)
                except OSError:  # a read-only tier
                    touch = False
            return contents
        finally:
            files.close(directory)


def _read(files: Files, name: str, directory: int, trust: Trust) -> bytes:
    descriptor = files.open_file(name, directory)
    try:
        status = files.status(descriptor)
        trust.check(status, name)
        if status.st_size > LARGE:
            raise ValueError  # the client proper compares it with the memory that there is
        return files.read(descriptor, status.st_size)
    finally:
        files.close(descriptor)


def _setting(environ: Mapping[str, str], name: str) -> str:
    return environ.get(f"NEURON_CACHE_{name}", "").strip()


def _root(environ: Mapping[str, str]) -> str:
    given = _setting(environ, "NODE_DIR")
    if not given:
        base = base_folder(environ, "XDG_CACHE_HOME")
        given = f"{base or '~'}/neff-cache"
    path = os.path.expanduser(given)  # noqa: PTH111 - pathlib costs 3 ms
    if path.startswith("~"):
        raise ValueError
    return os.path.abspath(path)  # noqa: PTH100
