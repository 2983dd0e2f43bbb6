"""What the sweep says of an operator. Imports neither torch nor jaxlib: the parent process needs it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

OK = "ok"
HOST = "host"  # right, but some operator ran on the CPU
UNSUPPORTED = "unsupported"  # one exception that names the operator at fault
WRONG = "wrong"
CRASH = "crash"  # the process died, or did not come back in time
NO_REFERENCE = "no-reference"  # the CPU itself refuses it, or there is no sample
STATUSES = (OK, HOST, UNSUPPORTED, WRONG, CRASH, NO_REFERENCE)

# From best to worst: an operator is what the worst of its samples is.
_RANK = {status: rank for rank, status in enumerate((NO_REFERENCE, OK, HOST, UNSUPPORTED, WRONG, CRASH))}


@dataclass(frozen=True)
class Outcome:
    """The verdict on one operator, and the reason in one line where it is not `OK`."""

    operator: str
    status: str
    reason: str = ""

    def worse(self, other: Outcome) -> Outcome:
        return other if _RANK[other.status] > _RANK[self.status] else self

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Task:
    """One column of the sweep: which path, which element type, with the backward pass or without."""

    mode: str  # "lowered", "device" or "torch_mlir"
    dtype: str
    gradient: bool
    samples: int

    @property
    def name(self) -> str:
        return f"{self.mode}-{self.dtype}" + ("-gradient" if self.gradient else "")
