"""A choice of buckets as a picture, in plain SVG: lengths and buckets above, padding by number of graphs below."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from client.buckets import Choice

_WIDTH, _PANEL, _LEFT, _TOP, _GAP = 760, 190, 64, 40, 74
_BARS = 120
_INK, _PALE, _MARK = "#1f2933", "#9fb3c8", "#c2410c"


def picture(histogram: Mapping[int, int], found: Sequence[Choice], chosen: Choice) -> str:
    """Return an SVG document that shows ``chosen`` against the ``histogram`` and among the choices ``found``."""
    height = _TOP + 2 * _PANEL + _GAP + 50
    right = _LEFT + _WIDTH
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + 24}" height="{height}" '
        f'viewBox="0 0 {right + 24} {height}" font-family="sans-serif" font-size="12" fill="{_INK}">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n'
    )
    title = f"{len(chosen.buckets)} graphs, {chosen.waste:.1%} padding"
    parts = [_text(_LEFT, 22, title, size=15), *_lengths(histogram, chosen), *_curve(found, chosen)]
    return head + "\n".join(parts) + "\n</svg>\n"


def _lengths(histogram: Mapping[int, int], chosen: Choice) -> list[str]:
    """Draw requests by length as bars, and each bucket as a line at its right end."""
    longest = max(*chosen.buckets, *histogram)
    bins = [0] * min(_BARS, longest)
    for length, count in histogram.items():
        bins[min((length - 1) * len(bins) // longest, len(bins) - 1)] += count
    bottom, wide = _TOP + _PANEL, _WIDTH / len(bins)
    parts = [_axis(bottom), _text(_LEFT, _TOP + _PANEL + 38, "input length (line: bucket)")]
    for index, count in enumerate(bins):
        tall = (_PANEL - 12) * count / max(bins)
        if count:
            parts.append(_box(_LEFT + index * wide, bottom - tall, max(wide - 1, 0.5), tall))
    for bucket in chosen.buckets:
        x = _LEFT + _WIDTH * bucket / longest
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{_MARK}" stroke-width="1.5"/>')
        parts.append(_text(x, bottom + 16, str(bucket), anchor="middle"))
    return parts


def _curve(found: Sequence[Choice], chosen: Choice) -> list[str]:
    """Draw the padding of each number of graphs."""
    top = _TOP + _PANEL + _GAP
    bottom, wide = top + _PANEL, _WIDTH / len(found)
    highest = max((choice.waste for choice in found), default=0) or 1.0
    parts = [_axis(bottom), _text(_LEFT, bottom + 38, "number of graphs; the part of what is computed that is padding")]
    for index, choice in enumerate(found):
        tall = (_PANEL - 24) * choice.waste / highest
        x = _LEFT + index * wide
        colour = _MARK if len(choice.buckets) == len(chosen.buckets) else _PALE
        parts.append(_box(x + wide * 0.15, bottom - tall, wide * 0.7, tall, colour))
        parts.append(_text(x + wide / 2, bottom - tall - 5, f"{choice.waste:.1%}", anchor="middle"))
        parts.append(_text(x + wide / 2, bottom + 16, str(len(choice.buckets)), anchor="middle"))
    return parts


def _axis(y: float) -> str:
    return f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + _WIDTH}" y2="{y}" stroke="{_INK}"/>'


def _box(x: float, y: float, width: float, height: float, colour: str = _PALE) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{text}</text>'
