"""Keys, lists and signed entries for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client.signing.signer import Signer
from client.signing.statements import Promotion
from client.signing.trust import TrustedKey, TrustList
from tests.client.programs import compiled, document, entry_of

if TYPE_CHECKING:
    from pathlib import Path

    from client.artifact import Compiled
    from client.key import KeyDocument
    from client.signing.keys import PrivateKey
    from client.wire import Entry

TIME = "2026-11-29T23:00:00Z"


def line(key: PrivateKey, name: str = "ci", **bounds: Any) -> TrustedKey:
    return TrustedKey(key.public, name, **bounds)


def trusting(*keys: TrustedKey) -> TrustList:
    return TrustList(keys)


def write_list(path: Path, *keys: TrustedKey) -> Path:
    path.write_text(TrustList(keys).text)
    return path


def save(key: PrivateKey, path: Path) -> Path:
    key.save(path)
    return path


def signed(
    key: PrivateKey, asked: KeyDocument | None = None, built: Compiled | None = None, project: str = "default"
) -> Entry:
    asked, built = asked or document(), built or compiled()
    return Signer(key).sign(entry_of(asked, built.outputs, project), built.outputs)


def promotion(entry: Entry, target: str, key: PrivateKey, time: str = TIME) -> Promotion:
    return Promotion.of(entry, target, by="somebody@host", time=time).signed(key)
