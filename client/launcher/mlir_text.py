"""MLIR text without its locations: what is left is what a compiler can make code of.

No parser: a tokenizer that knows strings, comments and parentheses. It takes away

- ``loc(…)`` with the blanks before it, wherever it is a location (``#…``, a string, ``unknown``, ``fused``,
  ``callsite`` stands inside),
- lines that define an alias of a location, or of LLVM's debug information, which only locations refer to,
- the values of `DEBUG_ATTRIBUTES`, which become the empty string,

and changes nothing else. What it does not understand stays as it is: that can cost a hit, never make a wrong one.
"""

from __future__ import annotations

import re

DEBUG_ATTRIBUTES = (b"debug_path", b"source_file", b"source_line", b"stack_trace")

# Tokens of interest all begin with one of a few characters, for which the engine looks at the speed of a byte scan.
# All repetitions are possessive: text that is broken must not cost more than text that is not.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN = re.compile(
    _STRING + rb"|//[^\n]*"
    rb'|(?<![\w$.@%#!^-])loc\s*\(\s*(?=[#"]|unknown\b|fused\b|callsite\b)'
    rb"|(?<![\w$.@%#!^-])(?:" + b"|".join(DEBUG_ATTRIBUTES) + rb")\s*=\s*(" + _STRING + rb"|[0-9]+)"
    rb'|"',  # a string that does not end: nothing behind it is touched
    re.DOTALL,
)
_SIMPLE_LOCATION = re.compile(rb'(?:[^()"/]++|' + _STRING + rb")*+\)", re.DOTALL)
_INSIDE = re.compile(_STRING + rb"|//[^\n]*|[()]", re.DOTALL)
_DEFINES = re.compile(rb"[ \t]*#[\w$.-]+[ \t]*=[ \t]*")
_LINE_END = re.compile(rb"[ \t]*\r?(?:\n|\Z)")
_DEBUG_INFORMATION = re.compile(
    rb"^[ \t]*#[\w$.-]+[ \t]*=[ \t]*(?:distinct\[[0-9]+\])?#llvm\.di_[^\n]*\n?", re.MULTILINE
)
_CLOSES = b" \t\r\n,)]}"
_QUOTE, _SLASH = b'"/'


def clear(text: bytes) -> bytes:
    """Return MLIR text without its locations."""
    if b"#llvm.di_" in text:
        text = _DEBUG_INFORMATION.sub(b"", text)  # a string of MLIR never goes over the end of a line
    if b"loc" not in text and not any(name in text for name in DEBUG_ATTRIBUTES):
        return text
    kept: list[bytes] = []
    start = at = 0
    while (token := _TOKEN.search(text, at)) is not None:
        begin, at = token.span()
        first = text[begin]
        if first == _SLASH:
            continue
        if first == _QUOTE:
            if at - begin == 1:
                break
            continue
        if token[1] is not None:
            kept += (text[start : token.start(1)], b'""')
            start = at
            continue
        end = _end_of_location(text, at)
        if end is None:
            continue
        cut, end = _with_surroundings(text, start, begin, end)
        kept.append(text[start:cut])
        if cut == begin and _joins(text, cut, end):
            kept.append(b" ")
        start = at = end
    kept.append(text[start:])
    return b"".join(kept)


def _end_of_location(text: bytes, at: int) -> int | None:
    """Return where the parenthesis ends that was opened before ``at``; None if it does not."""
    simple = _SIMPLE_LOCATION.match(text, at)
    if simple is not None:
        return simple.end()
    depth = 1
    for token in _INSIDE.finditer(text, at):
        if token[0] == b"(":
            depth += 1
        elif token[0] == b")":
            depth -= 1
            if not depth:
                return token.end()
    return None


def _with_surroundings(text: bytes, start: int, begin: int, end: int) -> tuple[int, int]:
    """Return what goes with a location: the line if it defines an alias, else the blanks before it."""
    line = max(text.rfind(b"\n", start, begin) + 1, start)
    after = _LINE_END.match(text, end)
    if after is not None and _DEFINES.fullmatch(text, line, begin):
        return line, after.end()
    while begin > start and text[begin - 1] in b" \t":
        begin -= 1
    return begin, end


def _joins(text: bytes, cut: int, end: int) -> bool:
    """Whether what stood apart would become one word."""
    return cut > 0 and end < len(text) and text[end] not in _CLOSES
