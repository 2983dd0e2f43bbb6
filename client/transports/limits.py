"""How long anything that waits on a network may take. All values are seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines of single requests.

    ``connect`` covers look-up, TCP, the proxy's tunnel and TLS together; ``answer`` is from the request's last byte to
    the end of the answer's head, and of its body where that is JSON; ``stall`` is how long a large body may take to
    move by `client.transports.timed_socket.PROGRESS` bytes, and how long a server may take to make an upload durable
    or to hash an output. ``retry`` is within which the last try begins of a write that a server could not take just
    then. A publisher is given up after ``upload``, or after ``without_lease`` if others wait for it.
    """

    connect: float = 2.0
    answer: float = 5.0
    stall: float = 30.0
    retry: float = 4.0
    without_lease: float = 30.0
    upload: float = 600.0


DEFAULT_LIMITS = Limits()
