"""Which Host names this server answers to: what keeps web pages of others from reaching it by DNS rebinding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cache_server.errors import Problem

if TYPE_CHECKING:
    from cache_server.settings import Settings


class HostList:
    """The allow-list. Only the Host header counts; what a proxy says about the original one is never read."""

    def __init__(self, settings: Settings) -> None:
        self._names = settings.host_names()

    def check(self, host: str | None) -> None:
        """Raise `Problem` ``wrong_host`` unless the header, without its port, is on the list."""
        if "*" in self._names:
            return
        if host is None or _without_port(host).lower() not in self._names:
            raise Problem("wrong_host")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]
