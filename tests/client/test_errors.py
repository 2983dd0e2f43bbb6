"""Exceptions keep what they say on their way through other people's code."""

from __future__ import annotations

import pickle

from client.errors import CompileError, Failure


def test_a_compile_error_survives_a_process_pool():
    error = CompileError(Failure("diagnosis", "NCC_EVRF001: bad shape", "the log"), origin="host-7")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.failure, copy.origin, str(copy)) == (error.failure, "host-7", str(error))
    assert str(error) == "NCC_EVRF001: bad shape (on host-7)\nthe log"
