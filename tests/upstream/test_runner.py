"""The runner of PyTorch's tests, on a file of ours made like them: what it says of each way in which a test ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.upstream import choosing, page, record, running
from tests.upstream.files import FILES
from tests.upstream.known import why
from tests.upstream.outcome import CRASH, ERROR, GRAVE, HANG, LIMIT, PASSED, SKIPPED, WRONG, Limits, Outcome
from tests.upstream.reasons import gist, kind, without_places

SAMPLES = Path(__file__).parent / "samples"
FILE = "judged.py"
LIMITS = Limits(test=8, grace=4, loading=250)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def judged(records: Path) -> record.Record:
    return running.judge(SAMPLES, FILE, 100, limits=LIMITS, records=records)


@pytest.mark.once
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("TestJudgedCPU.test_right_cpu", PASSED, ""),
        ("TestJudgedCPU.test_under_a_stub_cpu", PASSED, ""),
        ("TestJudgedCPU.test_wrong_cpu", WRONG, "AssertionError: Tensor-likes are not close!"),
        ("TestJudgedCPU.test_error_cpu", ERROR, "RuntimeError: this fails"),
        ("TestJudgedCPU.test_in_a_sample_cpu", ERROR, "NotImplementedError: below"),
        ("TestJudgedCPU.test_crash_cpu", CRASH, "SIGSEGV"),
        ("TestJudgedCPU.test_slow_cpu", LIMIT, "over 8 s"),
        ("TestJudgedCPU.test_hang_cpu", HANG, "no answer within 12 s"),
        ("TestJudgedCPU.test_that_hears_no_signal_cpu", LIMIT, "no answer within 12 s"),
        ("TestJudgedCPU.test_skipped_on_the_device_cpu", SKIPPED, "requires CUDA"),
        ("TestForTheCPUByNameCPU.test_named_cpu", PASSED, ""),
        ("TestPlain.test_of_the_default_device", ERROR, "AssertionError: String comparison failed: 'neuron' != 'cpu'"),
        ("TestPlain.test_of_a_compiled_graph", PASSED, ""),
    ],
)
def test_each_way_in_which_a_test_ends_is_told_from_the_others(
    name: str, status: str, reason: str, judged: record.Record
) -> None:
    assert judged.unloaded == ""
    assert judged.outcomes[name].status == status
    assert judged.outcomes[name].reason.startswith(reason)
    assert status == PASSED or kind(judged.outcomes[name])


@pytest.mark.once
@pytest.mark.timeout(600)
def test_what_does_not_pass_on_the_cpu_is_not_held_against_the_device(judged: record.Record, records: Path) -> None:
    cpu = record.read(FILE, "cpu", records).outcomes
    for name in ("test_skipped_cpu", "test_of_cuda_cpu", "test_that_fails_on_the_cpu_too_cpu"):
        assert cpu[f"TestJudgedCPU.{name}"].status in {SKIPPED, ERROR}
        assert f"TestJudgedCPU.{name}" not in judged.outcomes
    assert not any("CUDAByName" in name for name in cpu)


@pytest.mark.once
@pytest.mark.timeout(600)
def test_the_cpu_is_asked_once_for_each_version_of_torch(judged: record.Record, records: Path) -> None:
    before = record.place(FILE, "cpu", records).read_text()
    lied = before.replace('"TestJudgedCPU.test_right_cpu": ["passed"]', '"TestJudgedCPU.test_right_cpu": ["error"]')
    assert lied != before
    record.place(FILE, "cpu", records).write_text(lied)
    again = running.judge(SAMPLES, FILE, 9, limits=LIMITS, records=records, pattern=re.compile("test_right|_default_"))
    record.place(FILE, "cpu", records).write_text(before)
    assert list(again.outcomes) == ["TestPlain.test_of_the_default_device"]


@pytest.mark.once
def test_a_file_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('not with this torch')\n")
    found = running.judge(tmp_path, "broken.py", 1, limits=LIMITS, records=tmp_path)
    assert found.unloaded == "RuntimeError: not with this torch"


def test_a_share_is_told_by_its_number_alone() -> None:
    names = [f"TestSome.test_{number}" for number in range(100)]
    one = choosing.share(names, 5, number=1)
    assert one == choosing.share(reversed(names), 5, number=1)
    assert one != choosing.share(names, 5, number=2)
    assert choosing.share([*names, "TestSome.test_new"], 101, number=1)[:4] != []
    assert len(set(choosing.share(names, 1000, number=1))) == 100


def test_as_many_numbers_as_it_takes_see_every_file() -> None:
    seen = {file for number in range(-(-len(FILES) // 4)) for file in choosing.files(FILES, 4, number=number)}
    assert seen == set(FILES)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = {
        "TestA.test_b": Outcome("TestA.test_b", PASSED),
        "TestA.test_a": Outcome("TestA.test_a", ERROR, 'RuntimeError: "this"\\ fails'),
    }
    record.write(record.Record("nn/test_c.py", 7, "", rows), "neuron", tmp_path)
    assert record.read("nn/test_c.py", "neuron", tmp_path) == record.Record("nn/test_c.py", 7, "", rows)
    assert record.read("test_other.py", "neuron", tmp_path) == record.Record("test_other.py")


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (SKIPPED, "Only runs on cuda", "needs CUDA or another device"),
        (SKIPPED, "Only runs on cpu", "is for the CPU alone"),
        (SKIPPED, "test is slow; run with PYTORCH_TEST_WITH_SLOW to enable test", "is slow"),
        (SKIPPED, "there is no such test for neuron", "no such test for the device"),
        (
            ERROR,
            "UnsupportedOperator: aten.x cannot be lowered: no",
            "unsupported operator: refused",
        ),
        (ERROR, "AssertionError: RuntimeError not raised", "expected error was not raised"),
        (ERROR, "RuntimeError: Expected all tensors to be on the same device, but", "mixes devices"),
        (ERROR, "KeyError: 3", "KeyError"),
        (CRASH, "SIGSEGV", CRASH),
        (PASSED, "", ""),
    ],
)
def test_a_reason_has_its_class(status: str, reason: str, expected: str) -> None:
    assert kind(Outcome("TestA.test_b", status, reason)) == expected


def test_no_path_of_a_machine_stands_in_a_reason() -> None:
    assert without_places("No such file: '/home/me/pytorch/test/x.json' in a/b") == "No such file: '…/x.json' in a/b"


def test_failures_that_differ_in_numbers_alone_are_one_row() -> None:
    assert gist("AssertionError: 3 != 4.5e-07 at 0x7f00") == gist("AssertionError: 12 != 0.25 at 0x7fab")


def test_the_page_of_upstream_is_that_of_the_records() -> None:
    assert page.DOCUMENT.read_text() == page.document(), "run: python -m tests.upstream.page --write"


def test_every_crash_hang_and_wrong_value_in_the_records_is_understood() -> None:
    grave = [
        f"{file} {each.name}: {each.status}"
        for file in FILES
        for each in record.read(file, "neuron").outcomes.values()
        if each.status in GRAVE and not why(each.name)
    ]
    assert grave == []
