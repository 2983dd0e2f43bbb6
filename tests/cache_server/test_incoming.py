"""Slow bodies: who lets bytes trickle in is given up, who waits for our own disk is not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cache_server.errors import Problem
from cache_server.http.asgi import SLOWEST, Incoming

if TYPE_CHECKING:
    from starlette.types import Message

IDLE = 30.0


class Sender:
    """Sends pieces of one size, each after some seconds of a clock that nothing else moves."""

    def __init__(self, size: int, seconds: float) -> None:
        self.now = 0.0
        self._size = size
        self._seconds = seconds

    async def receive(self) -> Message:
        self.now += self._seconds
        return {"type": "http.request", "body": bytes(self._size), "more_body": True}


def _take(sender: Sender, pieces: int, *, our_seconds: float = 0.0) -> None:
    async def work() -> None:
        incoming = Incoming(sender.receive, IDLE, monotonic=lambda: sender.now)
        for _ in range(pieces):
            await incoming.next()
            sender.now += our_seconds

    asyncio.run(work())


def test_a_body_that_trickles_in_is_given_up() -> None:
    with pytest.raises(Problem) as raised:
        _take(Sender(1, IDLE - 1), 3)
    assert raised.value.kind.name == "upload_timeout"


def test_a_slow_but_steady_body_is_taken() -> None:
    _take(Sender(SLOWEST * 10, 10), 1000)


def test_a_short_body_may_take_its_time_up_to_the_limit() -> None:
    _take(Sender(1, 1), int(IDLE))


def test_our_own_slow_store_is_not_held_against_the_sender() -> None:
    _take(Sender(100_000, 0.1), 100, our_seconds=IDLE)


def test_a_sender_that_is_gone_is_no_slow_one() -> None:
    async def work() -> None:
        async def gone() -> Message:
            return {"type": "http.disconnect"}

        await Incoming(gone, IDLE).next()

    with pytest.raises(Problem) as raised:
        asyncio.run(work())
    assert raised.value.kind.name == "short_body"
