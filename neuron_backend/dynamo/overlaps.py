"""Arguments that overlap in memory, one of them written to: what a graph computes depends on where they lie.

AOTAutograd compiles for the arguments of the first call. Dynamo compares shapes and strides of later ones and, unless
the first ones overlapped, not where they lie; so this is looked at where the graph is called.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from neuron_backend.user_code import user_level

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Pattern: TypeAlias = "tuple[tuple[int, int, int], ...]"
"""Which arguments overlap, as pairs of positions, and by how many bytes the second begins after the first."""

APART: Final[Pattern] = ()

# Patterns whose overlaps were worked out; a window that slides through a buffer has a new one at each call.
_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of one tensor argument at ``position``, counted from where it begins."""

    position: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    width: int
    written: bool

    @classmethod
    def of(cls, position: int, tensor: torch.Tensor, *, written: bool) -> Span:
        width = tensor.dtype.itemsize
        return cls(position, tuple(tensor.shape), tuple(each * width for each in tensor.stride()), width, written)

    @property
    def length(self) -> int:
        return sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True)) + self.width

    def mark(self, memory: torch.Tensor, start: int) -> torch.Tensor:
        """Return the bytes of ``memory``, a flag for each, that the tensor has if it begins at ``start``."""
        return memory.as_strided((*self.sizes, self.width), (*self.strides, 1), start)


@dataclass(slots=True)
class Layout:
    """How the tensor arguments of a graph lie to each other: ``spans`` are theirs, of those that have any bytes."""

    spans: tuple[Span, ...]
    _positions: list[int] = field(init=False)
    _lengths: list[int] = field(init=False)
    _known: dict[Pattern, Pattern] = field(init=False, default_factory=dict)
    _last: tuple[list[int], Pattern] = field(init=False, default=([], APART))  # most calls have what the last one had

    def __post_init__(self) -> None:
        self._positions = [span.position for span in self.spans]
        self._lengths = [span.length for span in self.spans]

    @classmethod
    def of(cls, arguments: Sequence[Any], written: frozenset[int]) -> Layout:
        """Return the layout of arguments like these, of which those at ``written`` are written to."""
        return cls(
            tuple(
                Span.of(position, value, written=position in written)
                for position, value in enumerate(arguments)
                if isinstance(value, torch.Tensor) and not is_traceable_wrapper_subclass(value) and value.numel()
            )
        )

    @property
    def can_matter(self) -> bool:
        """Whether there is an argument that is written to, and another one."""
        return len(self.spans) > 1 and any(span.written for span in self.spans)

    def pattern(self, arguments: Sequence[Any]) -> Pattern:
        """Return which of these arguments overlap, where one of the two is written to."""
        return self._pattern([arguments[position].data_ptr() for position in self._positions])

    def pattern_of_examples(self, examples: Sequence[Any]) -> Pattern:
        """Return the same of tensors that may have no memory: where they lie in their storages says it."""
        storages: dict[int, int] = {}
        starts = []
        for position in self._positions:
            tensor = examples[position]
            storage = tensor.untyped_storage()._cdata  # noqa: SLF001 - a storage's identity
            begin = storages.setdefault(storage, len(storages) << 60)
            starts.append(begin + tensor.storage_offset() * tensor.dtype.itemsize)
        return self._pattern(starts)

    def _pattern(self, starts: list[int]) -> Pattern:
        before, pattern = self._last
        if starts != before:
            pattern = self._searched(starts)
            self._last = starts, pattern
        return pattern

    def _searched(self, starts: list[int]) -> Pattern:
        end = 0
        for index in sorted(range(len(starts)), key=starts.__getitem__):
            start = starts[index]
            if start < end:
                return self._overlapping(starts)
            end = start + self._lengths[index]
        return APART

    def _overlapping(self, starts: list[int]) -> Pattern:
        """Return the pairs that have bytes in common, of those whose extents meet."""
        meeting = tuple(
            (one, other, starts[other] - starts[one])
            for one, other in itertools.combinations(range(len(starts)), 2)
            if (self.spans[one].written or self.spans[other].written)
            and -self._lengths[other] < starts[other] - starts[one] < self._lengths[one]
        )
        found = self._known.get(meeting)
        if found is None:
            found = tuple(
                (self._positions[one], self._positions[other], distance)
                for one, other, distance in meeting
                if self._have_bytes_in_common(one, other, distance)
            )
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[meeting] = found
        return found

    def _have_bytes_in_common(self, one: int, other: int, distance: int) -> bool:
        first, second = max(-distance, 0), max(distance, 0)
        size = max(first + self._lengths[one], second + self._lengths[other])
        with torch.no_grad():
            memory = torch.zeros(size, dtype=torch.bool, device="cpu")
            self.spans[one].mark(memory, first).fill_(value=True)
            return bool(self.spans[other].mark(memory, second).any())


@dataclass(slots=True)
class ByOverlap:
    """Calls a graph as its arguments lie to each other: what was ``compiled`` for that, or ``plain``.

    ``plain`` runs operator by operator; it is for arguments that overlap otherwise than those that were compiled for.
    For arguments that lie apart ``compile_apart`` compiles what is not there. ``fallback``: whether ``plain`` may be
    run, with one warning, or RuntimeError is raised. ``because`` is a clause, with what else the user is to know.
    """

    name: str
    layout: Layout
    compiled: dict[Pattern, Callable[..., Any]]
    plain: Callable[..., Any]
    compile_apart: Callable[[Sequence[Any]], Callable[..., Any]]
    fallback: bool
    because: str = ""
    _told: bool = field(init=False, default=False)

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph; raises what the graph raises."""
        pattern = self.layout.pattern(arguments)
        function = self.compiled.get(pattern)
        if function is None:
            if pattern:
                self._tell(pattern)
                function = self.plain
            else:
                function = self.compiled[APART] = self.compile_apart(arguments)
        return function(*arguments)

    def _tell(self, pattern: Pattern) -> None:
        one, other, _ = pattern[0]
        sentence = (
            f"graph {self.name} was called with tensors that overlap in memory (its inputs {one} and {other}), one of "
            f"which it writes to, and was not compiled for that{self.because}"
        )
        advice = "clone one of them to have it run as a program"
        if not self.fallback:
            raise RuntimeError(f"{sentence}: {advice}, or allow fallback")
        if not self._told:
            self._told = True
            warnings.warn(
                f"{sentence}: such calls run operator by operator; {advice}", UserWarning, stacklevel=user_level()
            )
