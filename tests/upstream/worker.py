"""A child process: tells the tests of a file, then runs those named on standard input, one JSON line for each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
import unittest
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.upstream import loading
from tests.upstream.files import SIDES
from tests.upstream.outcome import ERROR, EXPECTED, LIMIT, PASSED, SKIPPED, WRONG
from tests.upstream.reasons import without_places

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

REASON_CHARACTERS = 240
TRACE_CHARACTERS = 6000
_UNEQUAL = ("Tensor-likes are not", "Scalars are not close", "Jacobian mismatch")

_ADVICE = "\nTo execute this test"
_ELSEWHERE = "Original Traceback"  # of another process: what went wrong stands in its last line


class OutOfTimeError(BaseException):
    """Raised in a test that took too long; not an Exception, so that the test does not catch it."""


class _Result(unittest.TestResult):
    """Keeps the first failure as an exception: its text alone does not tell what caused it."""

    def __init__(self) -> None:
        super().__init__()
        self.first: BaseException | None = None

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802 - unittest's name
        self.first = self.first or err[1]
        super().addError(test, err)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self.first = self.first or err[1]
        super().addFailure(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self.first = self.first or err[1]
        super().addSubTest(test, subtest, err)


def _cause(error: BaseException) -> BaseException:
    """Return what failed first: PyTorch wraps it in where it was found."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def run(make: Callable[[], unittest.TestCase], seconds: float) -> dict[str, Any]:
    """Run one test and say how it went."""
    late = False

    def out_of_time(_number: int, _frame: FrameType | None) -> None:
        nonlocal late
        late = True
        raise OutOfTimeError

    result = _Result()
    begin = time.monotonic()
    signal.signal(signal.SIGALRM, out_of_time)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        unittest.TestSuite([make()]).run(result)
    except BaseException as error:  # noqa: BLE001 - also what a test raises to end the process
        result.first = result.first or error
    finally:
        with contextlib.suppress(OutOfTimeError):
            signal.setitimer(signal.ITIMER_REAL, 0)
    answer = {"seconds": round(time.monotonic() - begin, 2), "reason": "", "trace": ""}
    if late:
        return {**answer, "status": LIMIT, "reason": f"over {seconds:g} s"}
    if result.first is not None:
        error = _cause(result.first)
        trace = "".join(traceback.format_exception(result.first))
        text = str(error).partition(_ADVICE)[0]
        if _ELSEWHERE in text:
            text = text.strip().splitlines()[-1]
        unequal = text.startswith(_UNEQUAL)
        reason = f"{type(error).__name__}: {text}"
        return {**answer, "status": WRONG if unequal else ERROR, "reason": reason, "trace": trace[-TRACE_CHARACTERS:]}
    if result.skipped:
        return {**answer, "status": SKIPPED, "reason": result.skipped[0][1]}
    return {**answer, "status": EXPECTED if result.expectedFailures or result.unexpectedSuccesses else PASSED}


def main() -> None:
    """Take the folder, the file, the device and the limit as arguments."""
    folder, file, device, seconds = sys.argv[1:]
    side = SIDES[device]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    module = loading.load(Path(folder), file, side)
    tests = loading.tests(module, side)
    say({"tests": {name: test.written for name, test in tests.items()}})
    import torch  # noqa: PLC0415 - the file has imported it

    for line in sys.stdin:
        name = line.strip()
        if name not in tests:
            say({"name": name, "status": SKIPPED, "reason": f"there is no such test for {device}"})
            continue
        if loading.is_plain(name):
            torch.set_default_device(device)
        answer = run(tests[name].make, float(seconds))
        torch.set_default_device(None)
        reason = without_places(" ".join(answer["reason"].split()))
        say({"name": name, **answer, "reason": reason[:REASON_CHARACTERS]})


if __name__ == "__main__":
    main()
