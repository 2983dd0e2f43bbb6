"""Entries of OpInfo and their samples."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DEVICE = "neuron"

ENTRIES = {entry.full_name: entry for entry in op_db}

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

# Results whose values nobody promises: memory as it is found.
UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
# Entries whose further results are for their own backward, and differ from device to device.
_FIRST_RESULT = frozenset({"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"})
# Entries whose second result is a place: among equals, which integers and bfloat16 have, any is right.
_PLACES = frozenset({"topk", "kthvalue", "median", "nanmedian", "mode", "sort"})
# Entries that want all tensors but the first on the CPU whatever the device.
_INDICES_ON_CPU = frozenset({"tensor_split"})
# Entries that are right up to a sign or a rotation, which OpInfo's own post-processing takes out.
_UP_TO_A_GAUGE = ("linalg.eig", "linalg.svd", "linalg.qr", "svd", "pca_lowrank", "svd_lowrank", "geqrf", "qr")
# Without one of these, an entry has no float32 in it: it is swept with what it has, in the column of float32.
_INSTEAD = (torch.int64, torch.bool, torch.complex64, torch.bfloat16)


def selected(dtype: torch.dtype, *, gradient: bool) -> list[str]:
    """Return the names of the entries that belong to a column."""
    return [name for name, entry in ENTRIES.items() if dtype_of(entry, dtype, gradient=gradient) is not None]


def dtype_of(entry: Any, dtype: torch.dtype, *, gradient: bool) -> torch.dtype | None:
    if gradient:
        return dtype if entry.supports_autograd and entry.supports_dtype(dtype, "cpu") else None
    candidates = (dtype, *_INSTEAD) if dtype == torch.float32 else (dtype,)
    return next((each for each in candidates if entry.supports_dtype(each, "cpu")), None)


def on_neuron(value: Any) -> Any:
    """Ask for the device where a sample asks for the CPU."""
    return DEVICE if isinstance(value, (str, torch.device)) and str(value) == "cpu" else value


def _placed(tensor: torch.Tensor, *, gradient: bool) -> torch.Tensor:
    return tensor.detach().to(DEVICE).requires_grad_(gradient and tensor.requires_grad)


@dataclass(frozen=True)
class Sample:
    """One call of an entry: ``run`` takes the tensors among its arguments and gives the tensors of its result."""

    entry: Any
    arguments: tuple[Any, ...]
    post: Callable[[Any], Any] | None
    tensors: list[torch.Tensor]

    def run(self, tensors: Sequence[torch.Tensor], place: Callable[[Any], Any] = lambda value: value) -> Any:
        """Call the entry with ``tensors`` and, for arguments that are none, what ``place`` makes of them."""
        flat, spec = tree_flatten(self.arguments)
        given = iter(tensors)
        flat = [next(given) if isinstance(each, torch.Tensor) else place(each) for each in flat]
        value, args, kwargs = tree_unflatten(flat, spec)
        return self.entry(value, *args, **kwargs)

    def placed(self, *, gradient: bool) -> list[torch.Tensor]:
        """Return the tensors, copied to the device as leaves."""
        moved = [_placed(each, gradient=gradient) for each in self.tensors]
        return [*moved[:1], *self.tensors[1:]] if self.entry.name in _INDICES_ON_CPU else moved

    @property
    def ties(self) -> bool:
        """Whether elements may well be equal."""
        return bool(self.tensors) and self.tensors[0].dtype not in {torch.float32, torch.float64}

    @property
    def shapes_only(self) -> bool:
        """Whether no value of the results is promised."""
        return self.entry.name in UNINITIALISED or (self.ties and self.entry.name == "argsort")

    def comparable(self, result: Any) -> list[torch.Tensor]:
        """Return the tensors of a result that have one right value, and its numbers as tensors."""
        if self.post is not None and self.entry.name.startswith(_UP_TO_A_GAUGE):
            result = self.post(result)
        places = self.ties and self.entry.name in _PLACES and isinstance(result, tuple)
        if self.entry.name in _FIRST_RESULT or places:
            result = result[0]
        return [
            torch.as_tensor(each) if isinstance(each, (bool, int, float, complex)) else each
            for each in tree_flatten(result)[0]
            if isinstance(each, (torch.Tensor, bool, int, float, complex))
        ]

    def differentiable(self, result: Any) -> list[torch.Tensor]:
        """Return the tensors of a result that the sweep differentiates."""
        processed = self.post(result) if self.post is not None else result
        leaves = [each for each in tree_flatten(processed)[0] if isinstance(each, torch.Tensor)]
        return [each for each in leaves if each.requires_grad]


def samples(name: str, dtype: torch.dtype, *, gradient: bool, count: int) -> Iterator[Sample]:
    """Yield ``count`` samples, the second of OpInfo's first: the first is often the trivial one.

    Every second sample lies in memory as OpInfo's seldom do, so that the strides of results are seen.
    """
    entry = ENTRIES[name]
    chosen = dtype_of(entry, dtype, gradient=gradient)
    torch.manual_seed(0)
    first = list(itertools.islice(entry.sample_inputs("cpu", chosen, requires_grad=gradient), max(count, 2)))
    for position, sample in enumerate((*first[1:2], *first[:1], *first[2:])[:count]):
        arguments = (sample.input, sample.args, sample.kwargs)
        tensors = [each for each in tree_flatten(arguments)[0] if isinstance(each, torch.Tensor)]
        if position % 2:
            tensors = [_rearranged(each) for each in tensors]
        yield Sample(entry, arguments, sample.output_process_fn_grad, tensors)


def _rearranged(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values as ``channels_last``, or the last two axes transposed in memory."""
    if tensor.layout is not torch.strided or tensor.dim() < 2:
        return tensor
    plain = tensor.detach()
    if tensor.dim() in _CHANNELS_LAST:
        other = plain.contiguous(memory_format=_CHANNELS_LAST[tensor.dim()])
    else:
        other = plain.mT.contiguous().mT
    return other.requires_grad_(tensor.requires_grad)
