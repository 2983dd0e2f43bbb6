"""The process that renews a job's leases, started as a script by `client.renewer`.

It ends when nothing is left to be renewed for `IDLE` seconds, when its input ends, or when its parent is gone (a fork
of the job may hold the pipe open).
"""

from __future__ import annotations

import json
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.heartbeat import Heartbeat

IDLE = 60.0
_WATCH_SECONDS = 0.5
_CHUNK = 65536


class _Leases:
    """The leases that this process renews, each from a thread, of which nothing here can starve any."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        from client.transports.http import HttpTransport  # noqa: PLC0415 - only in the process of its own

        self._transport = HttpTransport(start["url"], start["project"], start["environ"])
        self._kept: dict[int, Heartbeat] = {}

    def take(self, asked: Mapping[str, Any]) -> None:
        """Do what one line asks for."""
        from client.heartbeat import Heartbeat  # noqa: PLC0415 - as above
        from client.names import Kind  # noqa: PLC0415
        from client.wire import Granted  # noqa: PLC0415

        if "stop" in asked:
            heartbeat = self._kept.pop(asked["stop"], None)
            if heartbeat is not None:
                heartbeat.stop()
            return
        lease = Granted(asked["token"], asked["generation"], asked["ttl_seconds"])
        self._kept[asked["keep"]] = Heartbeat(
            self._transport, Kind(asked["kind"]), asked["key"], lease, limit=asked["seconds"]
        )

    def lost(self) -> list[int]:
        """Return the leases that were lost since the last call."""
        found = [number for number, heartbeat in self._kept.items() if heartbeat.lost]
        for number in found:
            del self._kept[number]
        return found

    def __bool__(self) -> bool:
        """Whether there is anything to renew."""
        return bool(self._kept)


def _work() -> None:
    tail = b""
    leases: _Leases | None = None
    parent, quiet = os.getppid(), 0.0
    while os.getppid() == parent and quiet < IDLE:
        if select.select([0], [], [], _WATCH_SECONDS)[0]:
            piece = os.read(0, _CHUNK)
            if not piece:
                return
            *lines, tail = (tail + piece).split(b"\n")
            for line in lines:
                value = json.loads(line)
                if leases is not None:
                    leases.take(value)
                elif value["parent"] == parent:
                    leases = _Leases(value)
                else:
                    return
        for number in leases.lost() if leases is not None else []:
            os.write(1, json.dumps({"lost": number}).encode() + b"\n")
        quiet = 0.0 if leases else quiet + _WATCH_SECONDS


if __name__ == "__main__":
    # started without site and without the folder of the job, in which a client.py may lie
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120 - pathlib costs
    with suppress(BrokenPipeError):
        _work()
    os._exit(0)  # a request under way, on a thread, is of no use any more
