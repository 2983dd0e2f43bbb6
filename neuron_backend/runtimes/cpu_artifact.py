"""The stand-in's artifact: machine code for this kind of CPU in a NEFF container, and a note of what it was made for.

One validator serves both compilers, but nothing here runs on a Neuron device, and the container's name field says so.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Final

from client import neff
from client.errors import NeffError

NAME: Final = "neff-cache cpu stand-in (XLA, not for Trainium)"
EXECUTABLE: Final = "executable.xla"
INFO: Final = "info.json"
SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Info:
    """What an executable was made for: it runs nowhere else, and XLA itself does not notice."""

    jaxlib: str
    target: str
    threads: int


def pack(executable: bytes, info: Info, *, uuid: bytes) -> bytes:
    """Return ``executable``, as XLA serialized it, in a NEFF container; ``uuid`` is 16 random bytes."""
    document = {"schema": SCHEMA, **asdict(info), "sha256": hashlib.sha256(executable).hexdigest()}
    return neff.pack(
        {INFO: json.dumps(document, indent=1).encode(), EXECUTABLE: executable},
        name=NAME,
        build_version=f"xla-cpu jaxlib-{info.jaxlib}",
        uuid=uuid,
        logical_cores=info.threads,
    )


def unpack(data: bytes, expected: Info) -> bytes:
    """Return the executable in ``data`` if it is whole and was made for ``expected``.

    Raises `NeffError` for a damaged container or payload, for a NEFF of another compiler, and for code made by another
    jaxlib, for another CPU or for another number of threads.
    """
    header = neff.validate(data)
    if header.name != NAME:
        raise NeffError(f"this NEFF ({header.name!r}) holds no code for the host CPU: expected one by the CPU stand-in")
    members = neff.unpack(data)
    if EXECUTABLE not in members or INFO not in members:
        raise NeffError(f"broken stand-in artifact: expected {INFO} and {EXECUTABLE}, found {sorted(members)}")
    executable = members[EXECUTABLE]
    try:
        document = json.loads(members[INFO])
        found, digest = Info(document["jaxlib"], document["target"], document["threads"]), document["sha256"]
    except (ValueError, TypeError, KeyError) as error:
        raise NeffError(f"broken stand-in artifact: {INFO} is unreadable ({error!r})") from error
    if hashlib.sha256(executable).hexdigest() != digest:
        raise NeffError(f"broken stand-in artifact: {EXECUTABLE} does not hash to the digest in {INFO}")
    for what, theirs, ours in (
        ("by jaxlib", found.jaxlib, expected.jaxlib),
        ("for target", found.target, expected.target),
        ("for a thread count of", found.threads, expected.threads),
    ):
        if theirs != ours:
            raise NeffError(f"this artifact was made {what} {theirs}, but here it is {ours}: compile it again here")
    return executable
