"""What is done about the verdict on an entry: it is used, used with a warning, or not used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from client.errors import ConfigurationError, SignatureError
from client.signing.trust import TrustList
from client.stalls import folder_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from client.names import Kind
    from client.warnings import Notices
    from client.wire import Entry

_REMEMBERED = 1024
"""Verdicts that are kept: a program that is looked up again is compared, not verified anew."""


class SignatureCheck:
    """One trust list and what it is for. Safe to use from several threads.

    ``path`` None, a list that cannot be read, and a missing ``cryptography`` all mean that nobody is trusted. The list
    is read again when its file changes. ``required``: what nobody vouches for is not used; otherwise it is, and either
    way there is one warning for each cause. ``strict`` raises what is refused in place of the warning. ``met`` is
    called with its kind.
    """

    def __init__(
        self,
        path: Path | None,
        notices: Notices,
        *,
        required: bool,
        strict: bool = False,
        met: Callable[[Kind], None] = lambda _: None,
    ) -> None:
        self.required = required
        self._path = path
        self._notices = notices
        self._strict = strict
        self._met = met
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._list: TrustList | None = None
        self._known: OrderedDict[tuple[str, str, str], tuple[Entry, SignatureError | None]] = OrderedDict()

    def admits(self, entry: Entry, where: str) -> bool:
        """Return whether an entry found at ``where`` may be used, and say why if nobody vouches for it.

        Raises `SignatureError` if it may not, where ``NEURON_CACHE_ON_ERROR=fail``.
        """
        error = self.verdict(entry)
        if error is None:
            return True
        name = f"{entry.project}/{entry.kind}/{entry.key[:12]} from {where}"
        if not self.required:
            self._notices.warn(f"signature {error.cause}", f"{name} is used although {error}")
            return True
        self._met(entry.kind)
        message = f"{name} is not used: {error}"
        if self._strict:
            raise SignatureError(error.cause, message)
        self._notices.warn(f"signature {error.cause}", message)
        return False

    def wants(self, entry: Entry) -> bool:
        """Return whether it is worth while to fetch the program of an entry."""
        return not self.required or self.verdict(entry) is None

    def verdict(self, entry: Entry) -> SignatureError | None:
        """Return why nobody vouches for an entry, or None if somebody does."""
        name = (entry.project, str(entry.kind), entry.key)
        with self._lock:
            trusted = self._current()
            known = self._known.get(name)
            if known is not None and known[0] == entry:
                self._known.move_to_end(name)
                return known[1]
        error: SignatureError | None = None
        try:
            trusted.check(entry)
        except SignatureError as found:
            error = found
        except ConfigurationError as found:
            error = SignatureError("not_checked", f"its signature cannot be checked: {found}")
        with self._lock:
            self._known[name] = (entry, error)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return error

    def _current(self) -> TrustList:
        """Return the list as its file stands now."""
        if self._path is None:
            return _NOBODY
        seen: tuple[int, ...]
        try:
            found = folder_of(self._path).reach(self._path.stat)
            seen = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
        except OSError:
            seen = ()
        if self._list is None or seen != self._seen:
            self._known.clear()
            self._seen = seen
            try:
                self._list = TrustList.load(self._path)
            except ConfigurationError as error:
                self._list = _NOBODY
                self._notices.warn(
                    "trusted keys", f"NEURON_CACHE_TRUSTED_KEYS cannot be used, and nobody is trusted: {error}"
                )
        return self._list


_NOBODY = TrustList()
