"""Programs for the tests of the cache: key documents and real NEFF containers."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from client import neff
from client.artifact import Compiled
from client.key import CompilerIdentity, Ir, KeyDocument
from client.names import Kind
from client.wire import Entry, Output, Producer

if TYPE_CHECKING:
    from collections.abc import Mapping


def document(name: str = "program", kind: Kind = Kind.GRAPH) -> KeyDocument:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return KeyDocument(
        kind=kind,
        ir=Ir("stablehlo", "vhlo", "1.0.0", digest),
        compiler=CompilerIdentity("test", "1.2.3+abc"),
        target="trn2",
        logical_cores=2,
    )


def build(size: int = 300) -> bytes:
    """Return a new build of a program: like those of real compilers, no two are equal."""
    members = {"text": os.urandom(size)}
    return neff.pack(members, name="test program", build_version="1.2.3", uuid=os.urandom(16))


def compiled(seconds: float = 1.5, size: int = 300) -> Compiled:
    return Compiled({"model.neff": build(size), "compile.log": b"all is well\n"}, seconds)


def entry_of(document: KeyDocument, outputs: Mapping[str, bytes], project: str = "default") -> Entry:
    return Entry(
        project=project,
        kind=document.kind,
        key=document.key,
        outputs=tuple(
            Output(name, hashlib.sha256(content).hexdigest(), len(content)) for name, content in outputs.items()
        ),
        created="2026-11-29T23:00:00Z",
        compile_seconds=1.5,
        producer=Producer("neff-cache/test", "somewhere"),
        key_document=document.to_json(),
    )
