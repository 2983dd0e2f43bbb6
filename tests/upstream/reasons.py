"""What kind of thing a reason is: a skip's, or a failure's."""

from __future__ import annotations

import re

from tests.upstream.outcome import CRASH, ERROR, HANG, LIMIT, SKIPPED, WRONG, Outcome

_SKIPS = (
    (
        "needs CUDA or another device",
        r"(?i)cuda|cudnn|cublas|cusolver|gpu|\bsm\d|rocm|\bmps\b|\bxpu\b|xla|triton",
    ),
    ("is for the CPU alone", r"(?i)only runs on \(?\[?'?cpu|only runs on cpu|doesn't run on privateuse1|onlycpu"),
    ("is for named devices", r"(?i)only runs on|doesn't run on|not supported on privateuse1|privateuse1"),
    ("dtype not supported", r"(?i)dtype|bfloat16|float16|half|complex"),
    ("needs a library", r"(?i)lapack|magma|\bmkl|mkldnn|scipy|numpy|numba|torchvision|not installed|no module|require"),
    ("needs several devices", r"(?i)fewer than \d+ devices|multi|at least \d+ devices"),
    ("is slow", r"(?i)slow"),
    ("no such test for the device", r"there is no such test"),
)
_ERRORS = (
    ("default device in a forked process", r"forked|in bad fork|re-initialize"),
    ("sparse, nested or another layout", r"(?i)sparse|nested tensor|strided tensors only|mkldnn"),
    ("a length or index that must lie on the CPU", r"CPU int64 tensor"),
    ("dynamic shapes", r"dynamic=True|mark_dynamic|mark_unbacked"),
    ("copy on write of storages", r"storage != nullptr|unexpectedly materializes"),
    ("unsupported operator: refused", r"UnsupportedOperator|cannot be lowered|Could not run '|NotImplementedError"),
    ("a bug of ours, by its own word", r"a bug of neff-cache|LoweringBug"),
    ("this torch has not what the test wants", r"ImportError|ModuleNotFound|Attribut.*module 'torch|'Stub'|\bStub\b"),
    ("expected error was not raised", r"not raised|did not raise"),
    ("another text of an error", r'AssertionError: "?.*(does not match|not found in)'),
    ("mixes devices", r"on the same device|is on cpu|on cpu, but|device type (at|cpu)|different from other tensors"),
    ("warnings counted", r"(?i)warning"),
    ("asks for inductor's code", r"(?i)inductor|FileCheck|generated_kernel|run_and_get"),
    ("asks dynamo for graphs", r"(?i)recompil|dynamo|Unsupported\b|graph break|backend compiler|frame_count|op_count"),
    ("strides or storage", r"(?i)stride|storage|contiguous|data_ptr|alias|memory format"),
    ("device by name", r"(?i)privateuse|'?neuron|device"),
    ("asks for the CPU's own kernel", r"_ConvBackend"),
    ("counts something else", r"Scalars are not equal|!= \d+$"),
    ("assertion", r"AssertionError"),
)


def kind(outcome: Outcome) -> str:
    """Return the class of an outcome that did not pass; empty if it passed."""
    if outcome.status == SKIPPED:
        return _first(_SKIPS, outcome.reason, "PyTorch's own other reasons")
    if outcome.status == ERROR:
        return _first(_ERRORS, outcome.reason, outcome.reason.partition(":")[0])
    return outcome.status if outcome.status in {WRONG, CRASH, HANG, LIMIT} else ""


def _first(table: tuple[tuple[str, str], ...], text: str, otherwise: str) -> str:
    return next((name for name, pattern in table if re.search(pattern, text)), otherwise)


def without_places(text: str) -> str:
    """Leave out folders of paths and addresses in memory: they are those of one machine and run."""
    return re.sub(r"0x[0-9a-f]{6,}", "0x…", re.sub(r"/(?:[\w.@+-]+/){2,}", "…/", text))


def gist(reason: str) -> str:
    """Return a reason without its numbers, so that alike ones meet."""
    return re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e-?\d+)?", "N", reason)[:150]
