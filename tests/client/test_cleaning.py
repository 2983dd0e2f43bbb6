"""What others wrote reaches no terminal, log or error as it is: labels, hosts, key documents, compilers' logs."""

from __future__ import annotations

import logging
import pickle

import pytest

from client.cleaning import clean, cleaned_value
from client.cli.output import print_table, print_text, say
from client.errors import CompileError, ConfigurationError, Failure, NeffCacheError, Unreachable
from client.warnings import LOGGER, Notices

HOSTILE = "\x1b[2J\x1b]0;owned\x07 a\u202eb\u2066c\u200f \x9b31m \x7f \u2028 \x00 \ud800"
"""Clears a screen, sets its title, turns the direction of writing, ends a line, and is no text."""


def _moves_nothing(text: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in text)


@pytest.mark.parametrize("lines", [True, False])
def test_nothing_that_moves_a_cursor_is_left_and_everything_can_be_told_apart(lines: bool) -> None:
    found = clean(HOSTILE, lines=lines)
    assert found.isprintable()
    assert "\\x1b[2J" in found
    assert "\\u202e" in found
    assert found.encode()  # half a surrogate pair could not be written at all


@pytest.mark.parametrize("text", ["llama-8b", "größe 中文 עברית", "a b", "👍", "a b　c", ""])
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


def test_a_log_keeps_its_lines_and_a_cell_has_none() -> None:
    assert clean("a\n\tb\r\n") == "a\n\tb\\r\n"
    assert clean("a\n\tb", lines=False) == "a\\n\\tb"
    assert cleaned_value({"a": [HOSTILE, 1, None], HOSTILE: (True,)}) == {
        "a": [clean(HOSTILE), 1, None],
        clean(HOSTILE): (True,),
    }


@pytest.mark.parametrize(
    "error",
    [
        NeffCacheError(HOSTILE),
        ConfigurationError(HOSTILE),
        Unreachable(HOSTILE),
        CompileError(Failure("diagnosis", f"NCC_E {HOSTILE}", f"one\n{HOSTILE}\ntwo"), origin=HOSTILE),
    ],
)
def test_an_error_that_quotes_others_is_clean_wherever_it_is_shown(error: NeffCacheError) -> None:
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert _moves_nothing(str(each))
        assert _moves_nothing(repr(each))
    if isinstance(error, CompileError):
        assert "one\n" in str(error)
        assert error.failure.log.startswith("one\n\x1b")  # as the compiler said it, for whoever wants that


def test_commands_print_what_others_wrote_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("", ""), [(HOSTILE, "two\nlines\tand a tab")])
    print_text(HOSTILE)
    say(HOSTILE)
    out, err = capsys.readouterr()
    assert _moves_nothing(out + err)
    assert out.splitlines()[0].split("\t") == [clean(HOSTILE), "two\\nlines\\tand a tab"]


def test_a_terminals_table_is_clean_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    print_table(("label", "host"), [(HOSTILE, "h")])
    assert _moves_nothing(capsys.readouterr().out)


def test_a_job_log_is_clean_however_it_is_written() -> None:
    seen: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    handler = Kept()
    LOGGER.addHandler(handler)
    try:
        Notices().warn("cause", f"the server said {HOSTILE}")
        LOGGER.warning("host %s, label %r", HOSTILE, "x")
        LOGGER.warning("%d entries", 3)
    finally:
        LOGGER.removeHandler(handler)
    assert len(seen) == 3
    assert all(map(_moves_nothing, seen))
    assert seen[2] == "3 entries"
