"""Signs what is published from here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from client.signing.statements import sign_entry
from client.transports.publishing import as_stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.signing.keys import PrivateKey
    from client.wire import Entry


class Signer:
    """One private key at work."""

    def __init__(self, key: PrivateKey) -> None:
        self._key = key

    def sign(self, entry: Entry, outputs: Mapping[str, bytes]) -> Entry:
        """Return the entry signed, unless it is already; ``outputs`` are its plain bytes by name.

        A signature covers how each output is stored, so that is decided here, before the entry goes anywhere.
        """
        if entry.signature is not None:
            return entry
        stored = tuple(as_stored(entry, output, outputs[output.name])[0] for output in entry.outputs)
        return sign_entry(replace(entry, outputs=stored), self._key)
