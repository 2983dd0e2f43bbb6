"""The command line: what is one compile, what is another, and what is not for a cache to touch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client.launcher import command
from client.launcher.passing import NotShared

if TYPE_CHECKING:
    from pathlib import Path

XLA = ["--framework", "XLA"]
XLA_ONLY = "--framework XLA"


def flags(line: str) -> tuple[str, ...]:
    return command.read(line.split()).flags


@pytest.mark.parametrize(
    ("line", "target", "cores", "kept"),
    [
        ("compile a.mlir --framework XLA --target trn2 --output o", "trn2", None, "--framework XLA --target trn2"),
        ("--target=trn1 compile a.mlir --framework=XLA -o o", "trn1", None, "--target=trn1 --framework=XLA"),
        ("compile --framework XLA --target trn1 a.mlir --target=trn2 -o=o", "trn2", None, None),
        ("compile a.mlir --framework XLA --lnc 2 --output=o", None, "2", "--framework XLA --lnc 2"),
        ("compile a.mlir --framework XLA -lnc 1 -o o", None, "1", "--framework XLA -lnc 1"),
        ("compile a.mlir --framework XLA --logical-nc-config=2 --lnc 1 -o o", None, "1", None),
        ("compile a.mlir --framework XLA --lnc 1 -lnc=2 -o o", None, "2", None),
        ("compile a.mlir --framework XLA -O1 -o o", None, None, "--framework XLA -O1"),
        ("compile a.mlir --framework XLA -O 1 -o o", None, None, "--framework XLA -O 1"),
        ("compile a.mlir --framework XLA --optlevel 1 -o o", None, None, "--framework XLA --optlevel 1"),
        ("compile a.mlir --framework XLA --internal-x 5 -o o", None, None, "--framework XLA --internal-x 5"),
        ("compile --enable-x --framework XLA a.mlir -o o", None, None, "--enable-x --framework XLA"),
        ("--enable-x compile a.mlir --framework XLA -o o", None, None, "--enable-x --framework XLA"),
        (
            "compile a.mlir --framework XLA --verbose 35 --workdir w --logfile-verbose=1 -o o",
            None,
            None,
            "--framework XLA",
        ),
        ("compile a.mlir --framework XLA --tensorizer-options=--a=1 -o o", None, None, None),
        ("compile a.mlir --framework XLA --cache_dir=/x --log_level 3 -o o", None, None, "--framework XLA"),
    ],
)
def test_every_spelling_is_read_as_the_compiler_reads_it(
    line: str, target: str | None, cores: str | None, kept: str | None
) -> None:
    request = command.read(line.split())
    assert (request.source, request.output) == ("a.mlir", "o")
    assert (request.target, request.logical_cores) == (target, cores)
    if kept is not None:
        assert " ".join(request.flags) == kept


def test_the_private_run_differs_in_module_and_output_and_in_nothing_else() -> None:
    line = "--output=x --target trn1 compile a.mlir --framework XLA -o y --cache_dir=/tmp --logfile l"
    request = command.read(line.split(" "))
    assert request.output == "y"
    assert request.logfile == "l"
    expected = "--output=/p/out --target trn1 compile /p/in --framework XLA -o /p/out --logfile l"
    assert " ".join(request.command("/p/in", "/p/out")) == expected


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("compile a.mlir --framework XLA -O1 -o o", "compile b.mlir -o p --framework XLA -O1", True),
        ("compile a.mlir --framework XLA -O1 -o o", "compile a.mlir --framework XLA -O1 -o o --verbose=1", True),
        ("--framework XLA compile a.mlir -o o", "compile a.mlir --framework XLA -o o --logfile z", True),
        ("compile a.mlir --framework XLA -O1 -o o", "compile a.mlir --framework XLA -O2 -o o", False),
        ("compile a.mlir --framework XLA --new -o o", "compile a.mlir --framework XLA -o o", False),
        ("compile a.mlir --framework XLA --new a -o o", "compile a.mlir --framework XLA --new b -o o", False),
        (
            "compile a.mlir --framework XLA --xa 1 --xb 2 -o o",
            "compile a.mlir --framework XLA --xb 2 --xa 1 -o o",
            False,
        ),
        ("compile a.mlir --framework XLA --auto-cast none -o o", "compile a.mlir --framework XLA -o o", False),
    ],
)
def test_words_that_can_change_the_program_and_no_others_are_in_the_key(one: str, other: str, equal: bool) -> None:
    assert (flags(one) == flags(other)) is equal


@pytest.mark.parametrize(
    "line",
    [
        "--version",
        "--help",
        "list-operators --framework XLA",
        "compile --help",
        "compile a.mlir --framework XLA",
        "compile a.mlir -o o",
        "compile a.mlir --framework TENSORFLOW -o o",
        "compile a.mlir b.mlir --framework XLA -o o",
        "compile --framework XLA -o o",
        "compile a.mlir --framework XLA -o",
        "compile a.mlir --framework XLA --output= ",
        "compile a.mlir --framework XLA --output --lnc 2",
        "compile a.mlir --framework XLA -o o --pipeline compile SaveTemps",
        "compile a.mlir --framework XLA -o o --pipeline=compile",
        "compile a.mlir --framework XLA -o o --dump=all",
        "compile a.mlir --framework XLA -o o --dump-nki x",
        "compile a.mlir --framework XLA -o o --x=SaveTemps",
        "compile a.mlir --framework XLA -o o --tar trn1",
        "compile a.mlir --framework XLA -o o --outp p",
        "compile a.mlir --framework XLA -oout",
        "compile a.mlir --framework XLA -o o -- x",
        "compile a.mlir --framework XLA -o o @words",
        "compile a.mlir --framework XLA -o o --no_cache",
        "a.mlir compile --framework XLA -o o",
        "",
    ],
)
def test_what_is_not_understood_for_certain_is_left_to_the_compiler(line: str) -> None:
    with pytest.raises(NotShared):
        command.read(line.split())


def test_an_option_whose_value_is_a_file_is_not_shared_for_the_file_is_not_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.json").write_text("{}")
    for words in (["--rules", "rules.json"], ["--rules=rules.json"], [f"--rules={tmp_path}/rules.json"]):
        with pytest.raises(NotShared):
            command.read(["compile", "a.mlir", *XLA, "-o", "o", *words])
    assert command.read(["compile", "--rules", "rules.json", *XLA, "-o", "o"]).source == "rules.json"


def test_wishes_in_the_variable_that_wrappers_read_are_followed() -> None:
    line = ["compile", "a.mlir", *XLA, "-o", "o"]
    assert not command.read(line).retry_failed
    assert command.read(line, ["--retry_failed_compilation"]).retry_failed
    assert command.read([*line, "--retry_failed_compilation"]).retry_failed
    with pytest.raises(NotShared):
        command.read(line, ["--no_cache"])
