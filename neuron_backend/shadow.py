"""Trust in hits: a share of the programs that the cache gave is compiled once more, and both are compared.

The job's own result comes from the program of the cache, as without this. Of the first call, inputs and outputs are
copied, within a bound; a thread of low priority compiles the module, runs it on those inputs and compares. What differs
is counted, kept for `neuron_backend.report` and warned of once for each key; the job is left alone.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from contextlib import suppress
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

import torch

from client.errors import NeffCacheError
from neuron_backend.likeness import unlikeness
from neuron_backend.torch_private import DisableTorchDispatch, DisableTorchFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from client.artifact import Artifact
    from client.warnings import Notices
    from neuron_backend.module import Module, Signature
    from neuron_backend.runtimes.base import Executable, Runtime

SETTING: Final = "NEURON_BACKEND_SHADOW"
MOST_BYTES: Final = 256 << 20
"""Bytes of inputs and outputs that wait to be compared."""
MOST_WAITING: Final = 64
MOST_KEPT: Final = 100
"""Differences that are kept for the report; all are counted."""
_NICENESS = 10
_RANDOM: Final = SystemRandom().random
_LAST_RUN_SECONDS = 5.0
_COUNTS = ("sampled", "equal", "close", "different", "skipped", "failed")


def fraction(environ: Mapping[str, str], notices: Notices) -> float:
    """Return the share of hits to compare that ``NEURON_BACKEND_SHADOW`` asks for; what means nothing is warned of."""
    text = environ.get(SETTING, "").strip() or "0"
    with suppress(ValueError):
        share = float(text)
        if 0 <= share <= 1:
            return share
    notices.warn(SETTING, f"{SETTING}={text!r} is no share of hits: expected 0 to 1, such as 0.01; no hit is checked")
    return 0.0


class Shadow:
    """Compares a ``share`` of the programs that come out of the cache. Safe to use from several threads.

    ``random`` draws numbers from 0 to 1, one for each key: not from a generator that the job might have seeded.
    ``heard`` is told each thing that is counted.
    """

    def __init__(
        self,
        share: float,
        runtime: Runtime,
        *,
        notices: Notices,
        heard: Callable[[str], None] = lambda _: None,
        random: Callable[[], float] = _RANDOM,
        most_bytes: int = MOST_BYTES,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._share = share
        self._runtime = runtime
        self._notices = notices
        self._random = random
        self._heard = heard
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._native = threading.Lock()  # held while XLA or libnrt works for us: the process must not end meanwhile
        self._waiting: queue.Queue[_Case] = queue.Queue(most_waiting)
        self._bytes = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._differences: dict[str, str] = {}

    def watched(
        self, executable: Executable, artifact: Artifact, module: Module, compile_again: Callable[[], bytes]
    ) -> Executable:
        """Return ``executable``, or one that does the same and offers its first call for comparison.

        ``compile_again`` returns a NEFF of ``module`` that comes from no cache.
        """
        if artifact.source not in ("disk", "remote") or self._random() >= self._share:
            return executable
        self._count("sampled")
        return _Watched(executable, _Offer(self, artifact, module, compile_again))

    def report(self) -> dict[str, Any]:
        """Return how many keys were sampled and how they compared, and the first differences by key."""
        with self._lock:
            return {**self._counts, "differences": dict(self._differences)}

    def close(self) -> None:
        """Begin no comparison any more; what waits is dropped. Idempotent."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            # never given back: the thread stops at its next step
            self._native.acquire(timeout=_LAST_RUN_SECONDS)

    def offer(self, case: _Case) -> None:
        """Take one call into the queue, if there is room; the job's tensors are copied now, they may change later."""
        if self._closed:
            return
        size = sum(each.nbytes for each in (*case.inputs, *case.outputs))
        with self._lock:
            fits = self._bytes + size <= self._most_bytes and not self._waiting.full()
            self._bytes += size if fits else 0
        if not fits:
            self._count("skipped")
            return
        try:
            case.copy()
            self._waiting.put_nowait(case)
        except (queue.Full, MemoryError, RuntimeError):  # torch says RuntimeError where memory is short
            self._let_go(size)
            self._count("skipped")
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="neff-cache-shadow", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def _work(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not self._closed:
            case = self._waiting.get()
            try:
                self._judge(case)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not look like the job's
                reason = str(error) if isinstance(error, NeffCacheError) else repr(error)
                self._notices.warn(f"{SETTING} failed", f"a hit could not be checked ({SETTING}): {reason}")
                self._count("failed")
            finally:
                self._let_go(case.size)

    def _judge(self, case: _Case) -> None:
        neff = case.compile_again()
        with self._native:
            again = self._runtime.load(neff, case.signature)(case.inputs)
            text, equal = unlikeness(case.outputs, again)
        if not text:
            self._count("equal" if equal else "close")
            return
        with self._lock:
            if len(self._differences) < MOST_KEPT:
                self._differences[case.key] = text
        self._notices.warn(
            f"{SETTING} {case.key}",
            f"program {case.key} from the cache ({case.source}) does not compute what a fresh compile of the same "
            f"module does: {text}. The job goes on with the cache's program; `neff-cache show {case.key}` says who "
            "made it",
        )
        self._count("different")  # last: who waits for the figure finds the rest said

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
        self._heard(name)

    def _let_go(self, size: int) -> None:
        with self._lock:
            self._bytes -= size


class _Case:
    """One call of a program: what went in and came out."""

    def __init__(self, offer: _Offer, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        self.key, self.source = offer.artifact.key, offer.artifact.source
        self.compile_again = offer.compile_again
        self.signature: Signature = offer.module.signature
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.size = sum(each.nbytes for each in (*inputs, *outputs))

    def copy(self) -> None:
        """Hold copies, made out of sight of the modes that the job may have on."""
        with torch.no_grad(), DisableTorchDispatch(), DisableTorchFunction():
            self.inputs = [each.detach().clone() for each in self.inputs]
            self.outputs = [each.detach().clone() for each in self.outputs]


class _Offer:
    """What a comparison needs beside the tensors; made for one key, taken at its first call."""

    def __init__(self, shadow: Shadow, artifact: Artifact, module: Module, compile_again: Callable[[], bytes]) -> None:
        self.shadow = shadow
        self.artifact = artifact
        self.module = module
        self.compile_again = compile_again


class _Watched:
    """`neuron_backend.runtimes.base.Executable` whose first call is compared."""

    def __init__(self, executable: Executable, offer: _Offer) -> None:
        self._executable = executable
        self._offers = [offer]

    @property
    def signature(self) -> Signature:
        """What it takes and gives, as the module says."""
        return self._executable.signature

    @property
    def direct(self) -> tuple[object, ...] | None:
        """What the device library needs to run it, once the call to be compared has come here."""
        return None if self._offers else self._executable.direct

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program of the cache; see `Executable`."""
        outputs = self._executable(inputs)
        if self._offers:
            with suppress(IndexError):  # two threads may come first together: one of them gets it
                offer = self._offers.pop()
                offer.shadow.offer(_Case(offer, inputs, outputs))
        return outputs
