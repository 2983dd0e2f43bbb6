"""What a prewarm did: programs by bucket, where each came from, what failed; as a plan and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from client.plans import Wanted

if TYPE_CHECKING:
    from client.names import Kind
    from neuron_backend.lowering import NotLowered

Name = tuple["Kind", str]
"""Kind and key of a program."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program: ``where`` is ``compiled``, the tier that had it (``disk``, ``remote``), or empty.

    ``seconds`` is what finding or compiling it took here, ``compile_seconds`` what its compiler took, whenever that
    was. ``error`` says why it could not be compiled.
    """

    kind: Kind
    key: str
    where: str
    seconds: float
    compile_seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """One set of inputs: ``label`` says which, ``programs`` in the order of their first use, ``seconds`` of capture.

    ``unsupported`` are graphs that cannot be lowered, which run operator by operator; ``fallback`` names operators that
    run on the CPU. ``error`` is what the user's code raised; the bucket's programs are then not complete.
    """

    label: str
    programs: tuple[Name, ...]
    seconds: float
    unsupported: tuple[NotLowered, ...] = ()
    fallback: tuple[str, ...] = ()
    error: str | None = None


@dataclass
class Report:
    """What `neuron_backend.compile_only` did.

    ``programs`` are all that the job will ask for. ``unpublished`` are those that the shared cache does not have at the
    end, and ``shared`` whether there is one. ``notes`` are sentences that the user should read.
    """

    project: str
    label: str
    buckets: list[Bucket] = field(default_factory=list)
    programs: dict[Name, Program] = field(default_factory=dict)
    unpublished: list[Name] = field(default_factory=list)
    shared: bool = False
    compiled: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[Program]:
        """The programs that could not be compiled."""
        return [program for program in self.programs.values() if program.error is not None]

    @property
    def unsupported(self) -> list[NotLowered]:
        """The graphs that cannot be lowered, over all buckets."""
        return [error for bucket in self.buckets for error in bucket.unsupported]

    @property
    def complete(self) -> bool:
        """Whether a job with these inputs will find all that it asks for, and run every graph as a program."""
        return self.complete_but_for_fallback and not self.unsupported

    @property
    def complete_but_for_fallback(self) -> bool:
        """Whether a job with these inputs will find all that it asks for, graphs that run operator by operator too."""
        return not self.failures and not self.unpublished and all(bucket.error is None for bucket in self.buckets)

    def count(self, where: str) -> int:
        """Return how many programs were ``compiled``, or found in a tier."""
        return sum(program.where == where for program in self.programs.values())

    def plan(self) -> list[Wanted]:
        """Return the entries that the job will use: what `check`, `pull` and bundles work on."""
        return [
            Wanted(self.project, program.kind, program.key, self.label, program.compile_seconds)
            for program in self.programs.values()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {
            "complete": self.complete,
            "programs": [
                {
                    "kind": program.kind.value,
                    "key": program.key,
                    "where": program.where,
                    "seconds": round(program.seconds, 3),
                    "compile_seconds": program.compile_seconds,
                    "error": program.error,
                }
                for program in self.programs.values()
            ],
            "buckets": [
                {
                    "label": bucket.label,
                    "programs": [{"kind": kind.value, "key": key} for kind, key in bucket.programs],
                    "seconds": round(bucket.seconds, 3),
                    "unsupported": [_unsupported(error) for error in bucket.unsupported],
                    "fallback": list(bucket.fallback),
                    "error": bucket.error,
                }
                for bucket in self.buckets
            ],
            "unpublished": [{"kind": kind.value, "key": key} for kind, key in self.unpublished],
            "notes": self.notes,
        }


def _unsupported(error: NotLowered) -> dict[str, str]:
    return {"operator": error.operator, "reason": error.reason, "graph": error.graph, "line": error.line}
