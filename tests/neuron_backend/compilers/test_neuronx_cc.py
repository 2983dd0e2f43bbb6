from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client import neff
from client.compiler_path import find_compiler
from client.errors import CompileError, ConfigurationError
from client.names import Kind
from neuron_backend.compilers import compiler_name
from neuron_backend.compilers.neuronx_cc import NeuronxCc
from tests.fakes.modules import ADD
from tests.fakes.programs import FakeCompiler, install_neuronx_cc
from tests.fakes.waiting import is_running

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "2.27.5334.0+f702b353"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCompiler]:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield install_neuronx_cc(tmp_path / "bin")
    assert list(temporary.iterdir()) == []


def environ(fake: FakeCompiler, **variables: str) -> dict[str, str]:
    return {"PATH": f"{fake.directory}:/usr/bin:/bin", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2", **variables}


def last_words(fake: FakeCompiler) -> list[str]:
    """The words of the last call, its private paths left out."""
    words: list[str] = fake.calls[-1]["arguments"]
    return ["IN" if word.endswith(".mlir") else "OUT" if word.endswith(".neff") else word for word in words]


@pytest.mark.parametrize(("kind", "level"), [(Kind.EAGER, "-O1"), (Kind.GRAPH, "-O2")])
def test_the_command_line_is_the_documented_one_and_the_key_holds_its_words(
    fake: FakeCompiler, kind: Kind, level: str
) -> None:
    compiler = NeuronxCc(environ(fake, NEURON_CC_FLAGS="--model-type transformer --no_cache --auto-cast=none"))
    configuration = compiler.configuration(kind)
    assert (configuration.target, configuration.logical_cores) == ("trn2", 2)
    assert configuration.flags == (level, "--model-type", "transformer", "--auto-cast=none")
    compiler.compile(ADD, configuration)
    begin = ["compile", "IN", "--framework", "XLA", "--target", "trn2", "--lnc", "2"]
    assert last_words(fake) == [*begin, level, "--model-type", "transformer", "--auto-cast=none", "--output", "OUT"]


def test_what_the_user_says_stands_last_and_wins(fake: FakeCompiler) -> None:
    compiler = NeuronxCc(environ(fake, NEURON_CC_FLAGS="-O3 --lnc=1 --output /mine.neff --verbose info --workdir=/w"))
    configuration = compiler.configuration(Kind.GRAPH)
    assert configuration.flags == ("-O2", "-O3", "--lnc=1")
    compiled = compiler.compile(ADD, configuration)
    logs = ["--verbose", "info", "--workdir=/w"]
    assert last_words(fake)[6:] == ["--lnc", "2", "-O2", "-O3", "--lnc=1", *logs, "--output", "OUT"]
    assert neff.read_header(compiled.neff).logical_cores == 1


def test_the_compiler_sees_a_scrubbed_environment_that_says_what_the_key_says(fake: FakeCompiler) -> None:
    compiler = NeuronxCc(
        environ(fake, NEURON_RT_VIRTUAL_CORE_SIZE="1", NEURON_FUSE_SOFTMAX="1", RANK="3", PYTHONPATH="/x", HOME="/root")
    )
    configuration = compiler.configuration(Kind.EAGER)
    assert configuration.logical_cores == 1
    compiler.compile(ADD, configuration)
    seen = fake.calls[-1]["environment"]
    private = {seen.pop("HOME"), seen.pop("TMPDIR")}
    assert len(private) == 2
    assert all(Path(directory).parent.parent == Path(tempfile.gettempdir()) for directory in private)
    seen.pop("LC_CTYPE", None)  # Python itself sets it where the locale is C
    assert seen == {
        "PATH": f"{fake.directory}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
        "NEURON_LOGICAL_NC_CONFIG": "1",
        "NEURON_RT_VIRTUAL_CORE_SIZE": "1",
    }


@pytest.mark.parametrize("mode", ["ok", "version-on-stderr"])
def test_the_version_is_found_on_either_stream_and_asked_once(fake: FakeCompiler, mode: str) -> None:
    fake.set_mode(mode)
    compiler = NeuronxCc(environ(fake))
    for kind in (Kind.EAGER, Kind.GRAPH, Kind.EAGER):
        assert compiler.configuration(kind).identity.version == VERSION
    assert [call["arguments"] for call in fake.calls] == [["--version"]]


def test_a_compiler_replaced_while_the_job_runs_is_noticed_before_it_compiles(fake: FakeCompiler) -> None:
    compiler = NeuronxCc(environ(fake))
    configuration = compiler.configuration(Kind.EAGER)
    fake.program.write_text(fake.program.read_text().replace(VERSION, "2.28.1.0+aaaa"))
    with pytest.raises(CompileError, match="replaced") as caught:
        compiler.compile(ADD, configuration)
    assert caught.value.failure.failure_class == "transient"
    compiler.compile(ADD, compiler.configuration(Kind.EAGER))


def test_a_program_that_says_no_version_is_never_guessed_at(fake: FakeCompiler) -> None:
    fake.set_mode("no-version")
    with pytest.raises(ConfigurationError, match="no compiler version in 'command not licensed'"):
        NeuronxCc(environ(fake)).configuration(Kind.EAGER)


@pytest.mark.parametrize(
    ("mode", "failure_class", "told"),
    [
        ("diagnosis", "diagnosis", "ended with exit status 70: ERROR: [NCC_ESFH002] unsupported operator"),
        ("memory", "resource", "[F137]"),
        ("memory-diagnosis", "resource", "bad_alloc"),
        ("missing-kernel", "transient", "NCC_EVRF059"),
        ("disk-full", "resource", "No space left"),
        ("killed", "resource", "was killed by signal 9"),
        ("shell-killed", "resource", "exit status 137"),
        ("crash", "transient", "ended with exit status 1: Traceback"),
        ("no-file", "transient", "no readable output file"),
        ("empty", "transient", "no whole NEFF"),
        ("short", "transient", "no whole NEFF"),
        ("random", "transient", "no whole NEFF"),
    ],
)
@pytest.mark.share(3)
def test_only_the_modules_own_fault_is_a_lasting_failure(
    fake: FakeCompiler, mode: str, failure_class: str, told: str
) -> None:
    compiler = NeuronxCc(environ(fake))
    configuration = compiler.configuration(Kind.GRAPH)
    fake.set_mode(mode)
    with pytest.raises(CompileError) as caught:
        compiler.compile(ADD, configuration)
    assert caught.value.failure.failure_class == failure_class
    assert told in caught.value.failure.text


def test_a_compiler_that_ends_well_and_leaves_nothing_is_told_of_with_module_command_line_and_its_own_log(
    fake: FakeCompiler,
) -> None:
    compiler = NeuronxCc(environ(fake))
    configuration = compiler.configuration(Kind.GRAPH)
    fake.set_mode("no-file")
    with pytest.raises(CompileError) as caught:
        compiler.compile(ADD, configuration)
    failure = caught.value.failure
    assert f"module sha256 {hashlib.sha256(ADD).hexdigest()}, {len(ADD)} bytes" in failure.text
    assert "neuronx-cc compile " in failure.text
    assert "--target trn2 --lnc " in failure.text
    assert "what the compiler tells its own log" in failure.log


def test_a_chatty_compiler_blocks_nobody_and_its_last_words_are_kept(fake: FakeCompiler) -> None:
    compiler = NeuronxCc(environ(fake))
    configuration = compiler.configuration(Kind.EAGER)
    fake.set_mode("chatty")
    log = compiler.compile(ADD, configuration).outputs["compile.log"]
    assert log.endswith(b"Compiler status PASS\n")
    assert len(log) < 1 << 21


def test_a_grandchild_that_would_outlive_the_compiler_holds_nobody_up_and_is_ended(fake: FakeCompiler) -> None:
    compiler = NeuronxCc(environ(fake))
    configuration = compiler.configuration(Kind.EAGER)
    fake.set_mode("outlived")
    compiler.compile(ADD, configuration)
    assert not is_running(fake.grandchild)


def test_the_compiler_may_be_named_and_is_looked_for_on_path_otherwise(fake: FakeCompiler, tmp_path: Path) -> None:
    other = install_neuronx_cc(tmp_path / "other").program
    assert find_compiler({"PATH": str(fake.directory)}) == str(fake.program)
    assert find_compiler({"PATH": str(fake.directory), "NEURON_CACHE_COMPILER": str(other)}) == str(other)
    assert find_compiler({"PATH": str(tmp_path / "empty")}) is None


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"PATH": "/nowhere"}, "no neuronx-cc on PATH"),
        ({"NEURON_CACHE_COMPILER": "/nowhere/cc"}, "NEURON_CACHE_COMPILER='/nowhere/cc' is no program"),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": ""}, "NEURON_PLATFORM_TARGET_OVERRIDE"),
        ({"NEURON_LOGICAL_NC_CONFIG": "many"}, "NEURON_LOGICAL_NC_CONFIG='many'"),
    ],
)
def test_what_is_missing_is_said_with_the_variable_to_set(
    fake: FakeCompiler, tmp_path: Path, variables: dict[str, str], told: str
) -> None:
    compiler = NeuronxCc(environ(fake, **variables), root=tmp_path)
    with pytest.raises(ConfigurationError, match=told):
        compiler.configuration(Kind.EAGER)


def test_kinds_that_are_not_compiled_here_are_refused(fake: FakeCompiler) -> None:
    with pytest.raises(ConfigurationError, match="kind foreign"):
        NeuronxCc(environ(fake)).configuration(Kind.FOREIGN)


def test_a_host_that_is_no_neuron_instance_compiles_with_the_stand_in(fake: FakeCompiler) -> None:
    assert compiler_name({"PATH": f"{fake.directory}:{os.environ['PATH']}"}) == "cpu"
