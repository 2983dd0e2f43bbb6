"""Connectionist temporal classification: the loss over all alignments of a target with a sequence, and its gradient.

The forward variable is log_alpha [N, T, 2 S + 1]: the blank stands between labels and at both ends. The steps over time
are unrolled: a program has T of them. Formulas are those of ATen/native/LossCTC.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.lowering.rewriting import rewrites

if TYPE_CHECKING:
    from collections.abc import Sequence


def _log_add(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the log of the sum of exponentials; nothing at all stays minus infinity."""
    return torch.logsumexp(torch.stack(list(terms)), 0)


@dataclass(frozen=True)
class _Alignment:
    """The extended targets: ``symbols`` [N, 2 S + 1], which of them may be skipped to, and true lengths [N]."""

    symbols: torch.Tensor
    skips: torch.Tensor
    steps: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def of(
        cls, log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, blank: int
    ) -> _Alignment:
        """``targets`` is [N, S], or all of them one after the other, which needs their lengths to be numbers."""
        batch = log_probs.shape[1]
        device = log_probs.device
        if targets.dim() == 1:
            if isinstance(target_lengths, torch.Tensor):
                raise RuntimeError("ctc_loss: concatenated targets need lengths that are numbers, not tensors")
            longest = max(target_lengths, default=0)
            padded = [row[:longest] for row in cls._rows(targets, target_lengths, longest)]
            targets = torch.stack(padded) if padded else targets.reshape(batch, 0)
        steps, labels = (cls._lengths(each, device) for each in (input_lengths, target_lengths))
        width = targets.shape[1]
        spaced = torch.stack((torch.full_like(targets, blank), targets), 2).reshape(batch, 2 * width)
        symbols = torch.cat((spaced, spaced.new_full((batch, 1), blank)), 1).to(torch.int64)
        before = _shifted(symbols, 2, blank)
        skips = (symbols != blank) & (symbols != before)
        inside = torch.arange(symbols.shape[1], device=device) < 2 * labels.unsqueeze(1) + 1
        return cls(torch.where(inside, symbols, blank), skips & inside, steps, labels)

    @staticmethod
    def _rows(targets: torch.Tensor, lengths: Sequence[int], longest: int) -> list[torch.Tensor]:
        filled = torch.cat((targets, targets.new_zeros(longest)))
        starts = [sum(lengths[:number]) for number in range(len(lengths))]
        return [filled[start : start + longest] for start in starts]

    @staticmethod
    def _lengths(lengths: Any, device: torch.device) -> torch.Tensor:
        if isinstance(lengths, torch.Tensor):
            return lengths.to(torch.int64)
        return torch.stack([torch.full((), each, dtype=torch.int64, device=device) for each in lengths])

    def emitted(self, log_probs: torch.Tensor) -> torch.Tensor:
        """[T, N, classes] at each symbol: [T, N, 2 S + 1]; minus infinity beyond a target's end."""
        index = self.symbols.expand(log_probs.shape[0], *self.symbols.shape)
        return torch.where(self.inside(), log_probs.gather(2, index), -math.inf)

    def inside(self) -> torch.Tensor:
        """Which symbols belong to the target."""
        number = torch.arange(self.symbols.shape[1], device=self.symbols.device)
        return number < 2 * self.labels.unsqueeze(1) + 1

    def forward(self, emitted: torch.Tensor) -> list[torch.Tensor]:
        """Return log_alpha [N, 2 S + 1] of each step."""
        number = torch.arange(self.symbols.shape[1], device=emitted.device)
        current = torch.where(number <= 1, emitted[0], -math.inf)
        found = [current]
        for step in range(1, emitted.shape[0]):
            one, two = (_shifted(current, count) for count in (1, 2))
            terms = (current, one, torch.where(self.skips, two, -math.inf))
            current = _log_add(terms) + emitted[step]
            found.append(current)
        return found

    def total(self, alphas: torch.Tensor) -> torch.Tensor:
        """Log of the probability of all alignments, from log_alpha [N, T, 2 S + 1]."""
        last = (self.steps - 1).clamp(min=0).reshape(-1, 1, 1).expand(-1, 1, alphas.shape[2])
        row = alphas.gather(1, last).squeeze(1)
        end = 2 * self.labels.unsqueeze(1)
        final = row.gather(1, end).squeeze(1)
        label = torch.where(self.labels > 0, row.gather(1, (end - 1).clamp(min=0)).squeeze(1), -math.inf)
        return _log_add((final, label))


def _shifted(row: torch.Tensor, count: int, filler: float = -math.inf) -> torch.Tensor:
    """Move [N, 2 S + 1] to later symbols, or to earlier ones for a negative ``count``."""
    ends = row.new_full((row.shape[0], abs(count)), filler)
    if count > 0:
        return torch.cat((ends, row), 1)[:, : row.shape[1]]
    return torch.cat((row, ends), 1)[:, -count:]


@rewrites("aten._ctc_loss.default", "aten._ctc_loss.Tensor")
def _ctc_loss(  # noqa: PLR0917  PyTorch's own signature
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss [N] and log_alpha for our own backward."""
    del zero_infinity  # the caller's own operator does it
    alignment = _Alignment.of(log_probs, targets, input_lengths, target_lengths, blank)
    alphas = torch.stack(alignment.forward(alignment.emitted(log_probs)), 1)
    empty = (alignment.steps == 0) & (alignment.labels == 0)
    return torch.where(empty, 0, -alignment.total(alphas)), alphas


@rewrites("aten._ctc_loss_backward.default", "aten._ctc_loss_backward.Tensor")
def _ctc_loss_backward(  # noqa: PLR0917  PyTorch's own signature
    gradient: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    loss: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """log_beta is log_alpha of the sequence read backwards; both together say how likely each symbol is at a step."""
    alignment = _Alignment.of(log_probs, targets, input_lengths, target_lengths, blank)
    emitted = alignment.emitted(log_probs)
    number = torch.arange(alignment.symbols.shape[1], device=log_probs.device)
    end = 2 * alignment.labels.unsqueeze(1)
    is_last = (number == end) | ((number == end - 1) & (end > 0))
    ahead = _shifted(alignment.skips, -2, filler=0)
    current = torch.full_like(emitted[0], -math.inf)
    posterior = []
    for step in reversed(range(emitted.shape[0])):
        one, two = (_shifted(current, -count) for count in (1, 2))
        moved = _log_add((current, one, torch.where(ahead, two, -math.inf))) + emitted[step]
        begins = torch.where(is_last, emitted[step], -math.inf)
        current = torch.where((alignment.steps - 1 == step).unsqueeze(1), begins, moved)
        posterior.append(log_alpha[:, step] + current - emitted[step])
    both = torch.stack(posterior[::-1])
    likely = (both + loss.unsqueeze(1)).exp()
    likely = torch.where(alignment.inside() & (both > -math.inf), likely, 0)
    index = alignment.symbols.expand(emitted.shape)
    occupied = torch.zeros_like(log_probs).scatter_add(2, index, likely)
    slope = (log_probs.exp() - occupied) * gradient.reshape(-1, 1)
    step_number = torch.arange(emitted.shape[0], device=log_probs.device).reshape(-1, 1)
    counts = step_number < alignment.steps
    if zero_infinity:
        counts = counts & (loss != math.inf)
    return torch.where(counts.unsqueeze(2), slope, 0)
