"""What the runner says of one test. Imports no torch: the parent process needs it."""

from __future__ import annotations

from dataclasses import dataclass

PASSED = "passed"
SKIPPED = "skipped"
EXPECTED = "expected failure"  # PyTorch itself expects it to fail
WRONG = "wrong value"  # tensors or numbers that are not what the test expects
ERROR = "error"
LIMIT = "over the limit"  # it took longer than it may
CRASH = "crash"
HANG = "hang"  # it could not be interrupted, and computed nothing
STATUSES = (PASSED, SKIPPED, EXPECTED, WRONG, ERROR, LIMIT, CRASH, HANG)
GOOD = {PASSED, SKIPPED, EXPECTED}
GRAVE = {WRONG, CRASH, HANG}  # never right, whatever else is missing


@dataclass(frozen=True)
class Outcome:
    """The verdict on one test, by the name that it has on the CPU; ``trace`` is for who mends it and is not kept."""

    name: str
    status: str
    reason: str = ""
    trace: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Limits:
    """Seconds that one test may take, that it may take longer before its process is killed, and that loading may."""

    test: float = 45.0
    grace: float = 20.0
    loading: float = 600.0
