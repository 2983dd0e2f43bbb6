"""Graphs whose results depend on where their arguments lie.

They write to one that overlaps another in memory, or see where in its storage one begins.
AOTAutograd compiles for the arguments of the first call. Dynamo compares shapes and strides of later ones and, unless
the first ones overlapped, not where they lie; so this is looked at where the graph is called.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from neuron_backend.torch_private import dynamo_config, is_traceable_wrapper_subclass
from neuron_backend.user_code import user_level

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Pattern: TypeAlias = "tuple[tuple[int, int, int], ...]"
"""Which arguments overlap, as pairs of positions, and by how many bytes the second begins after the first."""

APART: Final[Pattern] = ()

Place: TypeAlias = "tuple[Pattern, tuple[int, ...]]"
"""A pattern, and where each tensor begins in its storage, in elements; empty where the latter is all the same."""

# Patterns whose overlaps were worked out; a window that slides through a buffer has a new one at each call.
_REMEMBERED: Final = 1024
_SENTENCES: Final = 4  # that one graph says at most about its arguments


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
        """Return the bytes of ``tensor``, which has some."""
        width = tensor.dtype.itemsize
        return cls(position, tuple(tensor.shape), tuple(each * width for each in tensor.stride()), width, written)

    @property
    def length(self) -> int:
        """How many bytes lie between its first and its last, both included."""
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
    _can_overlap: bool = field(init=False)
    _known: dict[Pattern, Pattern] = field(init=False, default_factory=dict)
    _last: tuple[list[int], Pattern] = field(init=False, default=([], APART))  # most calls have what the last one had

    def __post_init__(self) -> None:
        self._positions = [span.position for span in self.spans]
        self._lengths = [span.length for span in self.spans]
        self._can_overlap = self.can_overlap

    @classmethod
    def of(cls, arguments: Sequence[Any], written: frozenset[int]) -> Layout:
        """Return the layout of arguments like these, of which those at ``written`` are written to."""
        return cls(
            tuple(
                Span.of(position, value, written=position in written)
                for position, value in enumerate(arguments)
                if _has_memory(value)
            )
        )

    @property
    def writes(self) -> bool:
        """Whether any argument is written to."""
        return any(span.written for span in self.spans)

    @property
    def can_overlap(self) -> bool:
        """Whether there is an argument that is written to, and another one."""
        return len(self.spans) > 1 and self.writes

    def offsets(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Return where each of these arguments begins in its storage."""
        return tuple([arguments[position].storage_offset() for position in self._positions])

    def pattern(self, arguments: Sequence[Any]) -> Pattern:
        """Return which of these arguments overlap, where one of the two is written to."""
        if not self._can_overlap:
            return APART
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


def _has_memory(value: Any) -> bool:
    """Whether it is a tensor with bytes of its own: tensors that are made of tensors have none."""
    return isinstance(value, torch.Tensor) and value.numel() > 0 and not is_traceable_wrapper_subclass(value)


@dataclass(slots=True)
class ByPlace:
    """Calls a graph as its arguments lie: what was ``compiled`` for that, or ``plain``.

    ``compiled`` is by overlaps and, if ``by_offset``, by where each tensor begins in its storage. For arguments that
    lie apart ``compile_apart`` compiles what is not there; ``plain``, which runs operator by operator, is for those
    that overlap otherwise than those that were compiled for. ``fallback``: whether it may be run, with one warning, or
    RuntimeError is raised. ``because`` is a clause, with what else the user is to know.
    """

    name: str
    layout: Layout
    by_offset: bool
    compiled: dict[Place, Callable[..., Any]]
    plain: Callable[..., Any]
    compile_apart: Callable[[Sequence[Any]], Callable[..., Any]]
    fallback: bool
    because: str = ""
    _told: set[str] = field(init=False, default_factory=set)

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph; raises what the graph raises."""
        pattern = self.layout.pattern(arguments)
        place = pattern, self.layout.offsets(arguments) if self.by_offset else ()
        function = self.compiled.get(place)
        if function is None:
            function = self._not_compiled(place, arguments)
        return function(*arguments)

    def _not_compiled(self, place: Place, arguments: Sequence[Any]) -> Callable[..., Any]:
        pattern, _ = place
        limit = dynamo_config.recompile_limit
        if pattern:
            one, other, _ = pattern[0]
            self._tell(
                f"graph {self.name} was called with tensors that overlap in memory (its inputs {one} and {other}), one "
                f"of which it writes to, and was not compiled for that{self.because}",
                "clone one of them",
            )
        elif len(self.compiled) >= limit:
            self._tell(
                f"graph {self.name} sees where its inputs begin in their storage, by as_strided or unfold, and was "
                f"compiled for {limit} places (torch._dynamo.config.recompile_limit) already",
                "clone what is a view, or raise the limit",
            )
        else:
            self.compiled[place] = self.compile_apart(arguments)
            return self.compiled[place]
        return self.plain

    def _tell(self, sentence: str, advice: str) -> None:
        if not self.fallback:
            raise RuntimeError(f"{sentence}: {advice}, or allow fallback")
        if sentence not in self._told and len(self._told) < _SENTENCES:
            self._told.add(sentence)
            warnings.warn(
                f"{sentence}: such calls run operator by operator. To run them as a program, {advice}",
                UserWarning,
                stacklevel=user_level(),
            )
