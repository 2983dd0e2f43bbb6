"""Which Host names this server answers to: what keeps web pages of others from reaching it by DNS rebinding."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cache_server.errors import Problem

if TYPE_CHECKING:
    from cache_server.settings import Settings


_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{0,5}))?")
_LAST_PORT = 65535


class HostList:
    """The allow-list. Only the Host header counts; what a proxy says about the original one is never read."""

    def __init__(self, settings: Settings) -> None:
        self._names = settings.host_names()

    def check(self, host: str | None) -> None:
        """Raise `Problem` ``wrong_host`` unless the header, without its port, is on the list."""
        if "*" in self._names:
            return
        if host is None or host_name(host) not in self._names:
            raise Problem("wrong_host")


def host_name(host: str) -> str:
    """Return the name in a Host header in lower case, IPv6 in brackets; "" for what is no ``host[:port]``.

    What stands there is read as RFC 9112, section 3.2, has it, and no other way: a user before an @, a second name, a
    port that is no number are for whom they fool. A dot at the end means the same name.
    """
    found = _HOST.fullmatch(host)
    if found is None or int(found["port"] or 0) > _LAST_PORT:
        return ""
    return found["name"].lower().removesuffix(".")
