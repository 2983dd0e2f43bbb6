"""A child process that judges names from standard input, one JSON line before and after each."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch

from tests.sweep.outcome import NO_REFERENCE, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sweep.outcome import Outcome

REASON_CHARACTERS = 200


def _dispatch_state() -> tuple[Any, ...]:
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return (*(each.raw_repr() for each in keys), torch.is_grad_enabled(), torch.is_inference_mode_enabled())


def answer(verdict: Callable[[str, Task], Outcome], kind: type[Outcome]) -> None:
    """Take the task as argument; the answers go where standard output went, which what is judged does not get."""
    task = Task(**json.loads(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    state = _dispatch_state()
    for line in sys.stdin:
        name = line.strip()
        say({"begin": name})
        try:
            outcome = verdict(name, task)
        except Exception as error:  # noqa: BLE001 - what makes the samples failed
            outcome = kind(name, NO_REFERENCE, f"{type(error).__name__}: {error}")
        say({**outcome.to_json(), "reason": " ".join(outcome.reason.split())[:REASON_CHARACTERS]})
        if _dispatch_state() != state:
            return  # torch can leave it changed where a trace fails: the next one gets a new process
