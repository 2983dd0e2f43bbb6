"""The launcher as callers meet it: a program that is started, and what it leaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client.launcher.script import install
from client.signing.keys import PrivateKey
from tests.client.launcher.test_module import HLO
from tests.fakes.waiting import HANG_SECONDS, is_running, wait_until
from tests.support.launching import WORDS, Host, kernel_call, module_text
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once

LINE = ("compile", "in.mlir", *WORDS, "--output", "out.neff")


def entry_of(host: Host) -> dict[str, Any]:
    (found,) = (host.folder / "node" / "v1" / "default" / "cc").glob("??/*/entry.json")
    entry: dict[str, Any] = json.loads(found.read_text())
    return entry


# what is found, and what is made


def test_a_second_compile_is_a_hit_of_the_same_bytes(host: Host) -> None:
    first = host.compile()
    assert (first.returncode, first.stdout) == (0, b"Compiler status PASS\n")
    made = (host.work / "out.neff").read_bytes()
    (host.work / "out.neff").unlink()
    second = host.compile("in.mlir", "--logfile", "log.txt")
    assert (second.returncode, second.stdout, second.stderr) == (0, b"", b"")
    assert (host.work / "out.neff").read_bytes() == made
    assert host.compiles == 1
    (line,) = (host.work / "log.txt").read_text().splitlines()
    assert "no compiler ran" in line
    assert entry_of(host)["key"] in line
    assert host.leftovers() == []


def test_every_form_of_one_compile_is_one_entry_and_every_other_compile_another(host: Host) -> None:
    (host.work / "copy.mlir").write_text(module_text() + "  ")
    (host.work / "located.mlir").write_text(module_text().replace("\n  }", ' loc("/home/me/a.py":1:1)\n  }'))
    same = [
        "compile in.mlir --framework XLA --target trn2 --lnc 2 -O2 --output out.neff",
        "compile --framework XLA --target trn2 --lnc 2 -O2 -o=out.neff located.mlir",
        "--framework XLA --target trn2 compile in.mlir --lnc 2 -O2 --output=out.neff --logfile log.txt",
        "--output other.neff compile in.mlir --framework XLA --target trn2 --verbose 35 --lnc 2 -O2 -o out.neff",
        "compile in.mlir --cache_dir=/x --framework XLA --target trn2 --lnc 2 -O2 --workdir w -o out.neff",
    ]
    others = [
        "compile in.mlir --framework XLA --target trn2 --lnc 2 -O1 -o out.neff",
        "compile in.mlir --framework XLA --target trn2 --lnc 1 -O2 -o out.neff",
        "compile in.mlir --framework XLA --target trn1 --lnc 2 -O2 -o out.neff",
        "compile in.mlir --framework XLA --target trn2 --lnc 2 -O2 --target trn1 -o out.neff",
        "compile in.mlir --framework XLA --target trn2 --lnc 2 -O2 --internal-max-instruction-limit 5 -o out.neff",
        "compile copy.mlir --framework XLA --target trn2 --lnc 2 -O2 -o out.neff",
    ]
    for count, lines in ((1, same), *((number, [line]) for number, line in enumerate(others, 2))):
        for line in lines:
            (host.work / "out.neff").unlink(missing_ok=True)
            assert host.run(*line.split()).returncode == 0, line
            assert (host.work / "out.neff").exists()
            assert host.compiles == count, line
    assert host.passed == []


@pytest.mark.parametrize("name", ["é" * 125 + ".neff", "中" * 83 + ".neff", "x" * 255], ids=["two", "three", "one"])
def test_an_output_with_the_longest_name_is_shared(host: Host, name: str) -> None:
    for _ in range(2):
        ended = host.run("compile", "in.mlir", *WORDS, "--output", name)
        assert (ended.returncode, host.compiles) == (0, 1)
        assert (host.work / name).stat().st_size
        (host.work / name).unlink()
    assert (host.passed, host.leftovers()) == ([], [])


def test_protobuf_and_bytecode_are_shared_too(host: Host) -> None:
    for count, content in enumerate((HLO, b"ML\xefR\x0dLLVM22\0rest"), 1):
        (host.work / "module.pb").write_bytes(content)
        for _ in range(2):
            assert host.compile("module.pb").returncode == 0
            assert host.compiles == count


def test_an_entry_holds_the_log_the_module_and_the_kernels(host: Host) -> None:
    kernel = host.folder / "tmp" / "abc" / "k.klir"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"kernel")
    (host.work / "in.mlir").write_text(kernel_call(kernel))
    assert host.compile(environment=host.environment(str(host.folder / "shared"))).returncode == 0
    outputs = {output["name"]: output["size"] for output in entry_of(host)["outputs"]}
    assert set(outputs) >= {"model.neff", "compile.log", "module.mlir"}
    assert [size for name, size in outputs.items() if name.startswith("kernel-")] == [len(b"kernel")]
    assert len(entry_of(host)["key_document"]["kernels"]) == 1


def test_memory_is_reserved_by_the_size_of_the_module(host: Host) -> None:
    assert host.compile().returncode == 0
    (learned,) = (host.folder / "node").rglob("peaks.json")
    ((size, peak),) = next(iter(json.loads(learned.read_text())["compilers"].values()))
    assert size == (host.work / "in.mlir").stat().st_size
    assert peak > 1 << 20


def test_the_same_kernel_at_another_path_hits_and_a_changed_one_compiles(host: Host) -> None:
    for number, content in enumerate((b"kernel", b"kernel", b"changed")):
        kernel = host.folder / f"job-{number}" / "abc" / "k.klir"
        kernel.parent.mkdir(parents=True)
        kernel.write_bytes(content)
        (host.work / "in.mlir").write_text(kernel_call(kernel))
        assert host.compile().returncode == 0
    assert host.compiles == 2


def test_the_compiler_gets_a_private_copy_of_what_was_hashed(host: Host) -> None:
    host.compile("in.mlir", "--workdir", "w", "--logfile=l")
    (call,) = (call for call in host.real.calls if "compile" in call["arguments"])
    private = call["arguments"][1]
    assert Path(private).name == "in.mlir"
    assert not Path(private).exists()
    output = call["arguments"][-4]
    assert Path(output).name == "out.neff"
    expected = ["compile", private, *WORDS, "--output", output, "--workdir", "w", "--logfile=l"]
    assert call["arguments"] == [*expected[: len(call["arguments"])]]
    assert call["directory"] == str(host.work)


def test_a_module_that_is_rewritten_meanwhile_is_compiled_as_it_was_read(host: Host) -> None:
    host.real.set_mode("sleepy")
    with host.start(LINE) as process:
        wait_until(lambda: host.compiles, "the compiler runs")
        (host.work / "in.mlir").write_text(module_text(7))
        process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0
    host.compile()
    assert host.compiles == 2
    (host.work / "in.mlir").write_text(module_text())
    host.compile()
    assert host.compiles == 2


def test_a_kernel_that_changes_while_it_is_compiled_is_not_shared(host: Host) -> None:
    kernel = host.folder / "k.klir"
    kernel.write_bytes(b"kernel")
    (host.work / "in.mlir").write_text(kernel_call(kernel))
    host.real.set_mode("sleepy")
    with host.start(LINE) as process:
        wait_until(lambda: host.compiles, "the compiler runs")
        kernel.write_bytes(b"changed")
        process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0
    assert (host.work / "out.neff").exists()
    assert host.passed == ["an NKI kernel's file changed while it was compiled"]
    kernel.write_bytes(b"kernel")
    host.compile()
    assert host.compiles == 3  # ours, the one passed on, and this one: nothing was kept under the first key


def test_outputs_are_readable_as_the_umask_says_and_links_stay_links(host: Host) -> None:
    target = host.folder / "elsewhere.neff"
    (host.work / "out.neff").symlink_to(target)
    for _ in range(2):
        assert host.compile(umask=0o027).returncode == 0
        assert (host.work / "out.neff").is_symlink()
        assert target.stat().st_mode & 0o777 == 0o640
        target.unlink()
    assert host.compiles == 1


def test_what_the_compiler_leaves_in_the_working_directory_is_left(host: Host) -> None:
    host.real.set_mode("working")
    host.compile()
    assert (host.work / "log-neuron-cc.txt").exists()


def test_counts_and_plans_of_a_job_hold_the_launchers_hits(host: Host) -> None:
    files = {"NEURON_CACHE_SUMMARY": str(host.folder / "sum"), "NEURON_CACHE_RECORD": str(host.folder / "plan")}
    for _ in range(3):
        assert host.compile(environment=host.environment(**files)).returncode == 0
    summary = json.loads((host.folder / "sum").read_text())
    assert (summary["lookups"], summary["hits"]["disk"], summary["compiles"]) == (3, 2, 1)
    assert len((host.folder / "plan").read_text().splitlines()) == 3


def test_a_damaged_entry_is_never_delivered(host: Host) -> None:
    host.compile()
    (stored,) = (host.folder / "node").glob("v1/default/cc/??/*/model.neff")
    stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    assert host.compile().returncode == 0
    assert host.compiles == 2


def test_a_tier_that_others_can_write_is_not_believed(host: Host) -> None:
    host.compile()
    (host.folder / "node").chmod(0o777)
    result = host.compile()
    assert result.returncode == 0
    assert host.compiles == 2
    assert b"written by every user" in result.stderr


def test_where_signatures_are_required_only_what_is_signed_is_delivered(host: Host, tmp_path: Path) -> None:
    host.compile()
    key = PrivateKey.generate()
    key.save(tmp_path / "key")
    (tmp_path / "trusted").write_text(f"{key.public} builder\n")
    signed = host.environment(
        NEURON_CACHE_SIGNING_KEY=str(tmp_path / "key"),
        NEURON_CACHE_TRUSTED_KEYS=str(tmp_path / "trusted"),
        NEURON_CACHE_SIGNATURES="require",
    )
    result = host.compile(environment=signed)
    assert (result.returncode, host.compiles) == (0, 2)
    assert b"is not signed" in result.stderr
    assert host.compile(environment=signed).stderr == b""
    (tmp_path / "trusted").write_text(f"{key.public} builder revoked=2026-11-30\n")
    assert host.compile(environment={**signed, "NEURON_CACHE_MODE": "ro"}).returncode == 0
    assert host.compiles == 3


def test_another_build_of_the_compiler_makes_another_key(host: Host) -> None:
    host.compile()
    text = host.real.program.read_text()
    host.real.program.write_text(text.replace("2.27.5334.0+f702b353", "2.28.1.0+aaaaaaaa"))
    host.compile()
    assert host.compiles == 2
    host.compile()
    assert host.compiles == 2
    assert sum(call["arguments"] == ["--version"] for call in host.real.calls) == 2


# what is passed on


@pytest.mark.parametrize("word", ["--help", "list-operators"])
def test_questions_go_straight_to_the_compiler_with_all_streams(host: Host, word: str) -> None:
    host.real.set_mode("diagnosis")
    with host.start([word], stdin=subprocess.PIPE) as process:
        output, errors = process.communicate(b"typed", timeout=HANG_SECONDS)
    assert (process.returncode, errors) == (3, b"and its error output\n")
    assert output == f"what {word} prints: typed\n".encode()
    assert host.passed == []


def test_the_version_is_asked_of_the_compiler_itself(host: Host) -> None:
    assert host.run("--version").stdout.startswith(b"NeuronX Compiler version 2.27.5334.0")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--dump-to", "x"), "--dump-to"),
        (("--no_cache",), "--no_cache"),
        (("--outp", "x"), "--outp may stand for another option"),
    ],
)
def test_what_is_not_shared_is_counted_with_the_reason(host: Host, words: tuple[str, ...], why: str) -> None:
    host.compile("in.mlir", *words)
    assert host.passed == [why]
    (call,) = host.real.calls
    assert call["arguments"][:2] == ["compile", "in.mlir"]
    assert "--no_cache" not in call["arguments"]


def test_the_cache_can_be_switched_off(host: Host) -> None:
    for _ in range(2):
        assert host.compile(environment=host.environment(NEURON_CACHE_MODE="off")).returncode == 0
    assert host.compiles == 2


def test_a_signal_reaches_a_compiler_that_was_passed_to(host: Host) -> None:
    host.real.set_mode("slow")
    with host.start([*LINE, "--no_cache"]) as process:
        known = host.real.directory / "grandchild.pid"
        wait_until(lambda: known.exists() and known.read_text(), "the compiler runs, and its child is known")
        assert host.real.calls[-1]["pid"] == process.pid
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=HANG_SECONDS)
    assert process.returncode == -signal.SIGTERM
    os.kill(host.real.grandchild, signal.SIGKILL)


# finding the compiler


def test_the_launcher_never_finds_itself_nor_another_behind_links(host: Host) -> None:
    second, linked = host.folder / "second", host.folder / "linked"
    install(second)
    linked.mkdir()
    (linked / "neuronx-cc").symlink_to(host.first / "neuronx-cc")
    path = f"{linked}:{host.first}:{second}:{host.real.directory}:{os.environ['PATH']}"
    for program in (linked, host.first, second):
        result = subprocess.run(
            [program / "neuronx-cc", *LINE],
            env=host.environment(PATH=path),
            cwd=host.work,
            check=True,
            timeout=HANG_SECONDS,
            capture_output=True,
        )
        assert result.stderr == b""
    assert host.compiles == 1


def test_with_no_compiler_behind_it_the_launcher_says_so_in_a_sentence(host: Host) -> None:
    result = host.run(*LINE, environment=host.environment(PATH=f"{host.first}:/usr/bin:/bin"))
    assert result.returncode == 127
    assert result.stderr.count(b"\n") == 1
    assert b"no Neuron compiler" in result.stderr


def test_a_named_compiler_wins_and_a_launcher_is_none(host: Host) -> None:
    other = host.folder / "other" / "my-cc"
    other.parent.mkdir()
    shutil.copy(host.real.program, other)
    assert host.compile(environment=host.environment(NEURON_CACHE_COMPILER=str(other))).returncode == 0
    assert host.compiles == 0
    assert (other.parent / "calls.jsonl").exists()
    named = host.environment(NEURON_CACHE_COMPILER=str(host.first / "neuronx-cc"))
    assert host.compile(environment=named).returncode == 127


def test_a_wrapper_that_leads_back_to_the_launcher_ends_with_one_sentence(host: Host) -> None:
    loop = host.folder / "loop"
    loop.mkdir()
    (loop / "neuronx-cc").write_text(f'#!/bin/sh\nexec {host.first / "neuronx-cc"} "$@"\n')
    (loop / "neuronx-cc").chmod(0o755)
    result = host.run("--help", environment=host.environment(PATH=f"{host.first}:{loop}:/usr/bin:/bin"))
    assert result.returncode == 70
    assert result.stderr.count(b"\n") == 1
    assert b"started itself" in result.stderr


def test_a_compiler_that_starts_the_launcher_gets_the_real_one(host: Host) -> None:
    nested = host.environment(NEURON_CACHE_LAUNCHER_DEPTH="1")
    assert host.compile(environment=nested).returncode == 0
    assert host.passed == ["started by a compiler"]


def test_a_client_module_beside_the_job_is_not_taken_for_ours(host: Host) -> None:
    (host.work / "client.py").write_text("raise SystemExit('shadowed')")
    shadowed = host.environment(PYTHONPATH=str(host.work))
    for _ in range(2):
        assert host.compile(environment=shadowed).returncode == 0
    assert host.compiles == 1


# failures


@pytest.mark.parametrize(
    ("mode", "status", "said"),
    [
        ("diagnosis", 70, b"NCC_ESFH002"),
        ("memory", 70, b"F137"),
        ("missing-kernel", 70, b"NCC_EVRF059"),
        ("crash", 1, b"AssertionError"),
        ("shell-killed", 137, b"Killed"),
        ("killed", -9, b""),
    ],
)
@pytest.mark.share(1)
def test_the_compilers_own_failure_reaches_the_caller(host: Host, mode: str, status: int, said: bytes) -> None:
    host.real.set_mode(mode)
    result = host.compile()
    assert result.returncode == status
    assert said in result.stderr
    assert not (host.work / "out.neff").exists()
    host.real.set_mode("ok")
    again = host.compile()
    assert again.returncode == (70 if mode == "diagnosis" else 0)  # only a diagnosis is remembered for a while
    assert (b"not compiled again here" in again.stderr) == (mode == "diagnosis")


@pytest.mark.parametrize("mode", ["no-file", "empty", "short"])
def test_exit_status_0_without_a_whole_program_is_a_failure(host: Host, mode: str) -> None:
    host.real.set_mode(mode)
    result = host.compile()
    assert result.returncode == 70
    told = result.stderr.decode().splitlines()[-1]
    key, log = re.findall(r"its key is cc/([0-9a-f]{64}), and its log is kept in (\S+\.log)$", told)[0]
    assert "compile in.mlir (sha256 " in told
    assert f"neuronx-cc compile in.mlir {' '.join(WORDS)} --output out.neff`" in told
    assert key in log
    assert "Compiler status PASS" in Path(log).read_text()
    assert not (host.work / "out.neff").exists()
    assert not list((host.folder / "node").glob("v1/default/cc/??/*/entry.json"))


def test_a_format_that_we_do_not_know_reaches_the_caller_and_is_not_kept(host: Host) -> None:
    host.real.set_mode("foreign")
    for count in (1, 2):
        result = host.compile()
        assert result.returncode == 0
        assert (host.work / "out.neff").read_bytes() == b"a container of another format"
        assert host.compiles == count


def test_must_hit_says_what_is_missing_and_compiles_nothing(host: Host) -> None:
    result = host.compile(environment=host.environment(NEURON_CACHE_ON_MISS="fail"))
    assert result.returncode == 70
    assert b"NEURON_CACHE_ON_MISS=fail" in result.stderr
    assert host.compiles == 0


def test_a_shared_diagnosis_is_told_with_its_log_and_a_wish_tries_again(host: Host) -> None:
    host.real.set_mode("diagnosis")
    shared = str(host.folder / "shared")
    first = host.environment(shared)
    assert host.compile(environment=first).returncode == 70
    retried = host.compile("in.mlir", "--retry_failed_compilation", environment=first)
    assert retried.returncode == 70
    assert host.compiles == 2


# callers and their pipes


def drain(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Read standard output to its end, and only then standard error."""
    assert process.stdout is not None
    assert process.stderr is not None
    output = process.stdout.read()
    errors = process.stderr.read()
    process.wait(timeout=HANG_SECONDS)
    return output, errors


@pytest.mark.parametrize(("mode", "size"), [("loud", 4096), ("chatty", 65536)])
def test_a_caller_that_reads_one_pipe_after_the_other_gets_all_of_both(host: Host, mode: str, size: int) -> None:
    host.real.set_mode(mode)
    with host.start(LINE, pipesize=size) as process:
        alarm = subprocess.Popen([sys.executable, "-c", f"import os,time; time.sleep(40); os.kill({process.pid}, 9)"])
        try:
            output, errors = drain(process)
        finally:
            alarm.kill()
            alarm.wait()
    assert process.returncode == (70 if mode == "loud" else 0)
    assert output.count(b"o") >= 64 * 16384
    assert errors.count(b"w") >= 64 * 16384


def test_our_own_words_never_fill_a_small_pipe(host: Host) -> None:
    many = {f"NKI_SWITCH_{'X' * 40}_{number}": "1" for number in range(300)}
    bad = {"NEURON_CACHE_URL": "/proc/nowhere", "NEURON_CACHE_NODE_MAX_BYTES": "many", "NEURON_CACHE_PROJECT": "A B"}
    with host.start(LINE, host.environment(**many, **bad), pipesize=4096) as process:
        _, errors = drain(process)
    assert process.returncode == 0
    assert 0 < len(errors) <= 2048


def test_a_caller_that_closed_its_streams_gets_a_whole_program(host: Host) -> None:
    line = f"exec {host.first / 'neuronx-cc'} {' '.join(LINE)} >&- 2>&- <&-"
    for _ in range(2):
        subprocess.run(["/bin/sh", "-c", line], env=host.environment(), cwd=host.work, check=True, timeout=HANG_SECONDS)
        assert b"Compiler status" not in (host.work / "out.neff").read_bytes()
    assert host.compiles == 1


def test_a_compiler_that_takes_too_long_is_stopped_and_that_is_said(host: Host) -> None:
    host.real.set_mode("slow")
    result = host.compile(environment=host.environment(NEURON_CACHE_COMPILE_LIMIT="1"))
    assert result.returncode == 70
    assert b"NEURON_CACHE_COMPILE_LIMIT" in result.stderr
    assert not is_running(host.real.calls[-1]["pid"])


def renewers(parent: int) -> list[int]:
    """Return the processes that ``parent`` has started to keep its leases."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, stat = (entry / "cmdline").read_bytes(), (entry / "stat").read_text()
        except OSError:
            continue
        if b"client/renewing.py" in command and int(stat.rpartition(")")[2].split()[1]) == parent:
            found.append(int(entry.name))
    return found


def test_a_long_compile_costs_a_host_no_process_beside_launcher_and_compiler(host: Host, tmp_path: Path) -> None:
    """A launcher only waits: its thread keeps the lease, and a job has hundreds of launchers."""
    host.real.set_mode("slow")
    seen: set[int] = set()
    with running_server(tmp_path / "server") as server:
        environment = host.environment(server.url, server.config, NEURON_CACHE_COMPILE_LIMIT="4")
        with host.start(LINE, environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None:
                seen.update(renewers(process.pid))
                time.sleep(0.05)
        assert process.returncode == 70
    assert seen == set()


# signals


@pytest.fixture
def running(host: Host, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    host.real.set_mode("slow")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with host.start(LINE, host.environment(TMPDIR=str(temporary))) as process:
        wait_until((host.real.directory / "grandchild.pid").exists, "the compiler runs")
        wait_until((host.real.directory / "grandchild.pid").read_text, "its child is known")
        yield process
        process.kill()
    compiler = host.real.calls[-1]["pid"]
    wait_until(lambda: not is_running(compiler), "the compiler is dead")
    wait_until(lambda: not is_running(host.real.grandchild), "its child is dead")
    wait_until(lambda: not list(temporary.iterdir()), "the private copy is gone")
    assert not (host.work / "out.neff").exists()
    assert host.leftovers() == []
    host.real.set_mode("ok")
    assert host.compile().returncode == 0  # nobody holds the key any more


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.share(1)
def test_a_launcher_that_is_killed_leaves_nothing_running_and_nothing_partial(
    running: subprocess.Popen[bytes], number: int
) -> None:
    running.send_signal(number)
    running.wait(timeout=HANG_SECONDS)
    assert running.returncode == -number


def test_a_compiler_that_is_killed_is_reported_as_killed(host: Host, running: subprocess.Popen[bytes]) -> None:
    host.real.set_mode("killed")  # once more, should it be tried once more
    os.kill(host.real.calls[-1]["pid"], signal.SIGKILL)
    running.wait(timeout=HANG_SECONDS)
    assert running.returncode == -signal.SIGKILL
