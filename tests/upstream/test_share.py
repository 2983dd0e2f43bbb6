"""PyTorch's own tests against the records, a share for each day: what passed passes, and nothing is gravely wrong."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.upstream import choosing, files, record, running
from tests.upstream.known import why
from tests.upstream.outcome import GOOD, GRAVE, LIMIT, PASSED, Limits, Outcome

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = files.folder()  # read now: no test sees the user's environment
NUMBER = int(os.environ.get("NEURON_UPSTREAM_NUMBER") or dt.datetime.now(dt.UTC).date().toordinal())
SECONDS = 300
FILES_OF_A_SHARE = 4
TESTS_OF_A_FILE = 15


@pytest.mark.once
@pytest.mark.skipif(FOLDER is None, reason=files.HOW_TO_GET)
@pytest.mark.timeout(1800)
def test_what_pytorch_says_of_the_device_is_no_worse_than_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another share every day; `NEURON_UPSTREAM_NUMBER` asks for a day's again."""
    assert FOLDER is not None
    records = shutil.copytree(record.RECORDS, tmp_path / "records")  # what the CPU says is added to them
    there = [file for file in files.FILES if (FOLDER / file).is_file()]
    bad = []
    for file in choosing.files(there, FILES_OF_A_SHARE, number=NUMBER):
        before = record.read(file, "neuron").outcomes
        found = running.judge(
            FOLDER,
            file,
            TESTS_OF_A_FILE,
            number=NUMBER,
            limits=Limits(),
            seconds=SECONDS / FILES_OF_A_SHARE,
            records=records,
        )
        with capsys.disabled():
            print(f"\nnumber {NUMBER}: {file}: {found.unloaded or f'{len(found.outcomes)} run'}")  # noqa: T201
            for each in found.outcomes.values():
                if each.status not in GOOD:
                    print(f"  {each.name}: {each.status}: {each.reason}")  # noqa: T201
        bad += [f"{file} {each.name}: {each.reason}" for each in found.outcomes.values() if worse(before, each)]
    assert bad == [], f"again with NEURON_UPSTREAM_NUMBER={NUMBER}"


def worse(before: dict[str, Outcome], now: Outcome) -> bool:
    """Return whether a test fell: an unknown one must not be gravely wrong, nor one that was not before."""
    if why(now.name):
        return False
    known = before.get(now.name)
    if known is None or known.status != PASSED:
        return now.status in GRAVE and (known is None or known.status not in GRAVE)
    return now.status not in GOOD | {LIMIT}


@pytest.mark.parametrize(
    ("before", "now", "fell"),
    [
        (PASSED, PASSED, False),
        (PASSED, "error", True),
        (PASSED, "wrong value", True),
        (PASSED, LIMIT, False),  # a busy machine
        ("error", "error", False),
        ("error", "crash", True),
        (None, "error", False),
        (None, "hang", True),
        ("wrong value", "wrong value", False),
    ],
)
def test_a_test_that_fell_is_told_from_one_that_never_stood(before: str | None, now: str, fell: bool) -> None:
    known = {} if before is None else {"a": Outcome("a", before)}
    assert worse(known, Outcome("a", now)) == fell


def test_a_folder_without_the_files_is_said_to_be_none(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", str(tmp_path)):
        monkeypatch.setenv(files.VARIABLE, value)
        assert files.folder() is None
    assert files.VARIABLE in files.HOW_TO_GET
