"""SHA-256 without OpenSSL: loading that takes 2 ms, a tenth of a hit; the interpreter's own takes 3 ms for each MB."""

from __future__ import annotations

from importlib import import_module

_SMALL = 600_000
_OWN = ("_sha2", "_sha256")  # CPython from 3.12 on, and before


def sha256(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in hexadecimal."""
    if len(data) <= _SMALL:
        for name in _OWN:
            try:
                module = import_module(name)
            except ImportError:  # an interpreter that was built without
                continue
            return str(module.sha256(data).hexdigest())
    import hashlib  # noqa: PLC0415 - see above

    return hashlib.sha256(data).hexdigest()
