"""What the runner has seen, as files of the repository: one for each test file, for each side of it."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.upstream.outcome import Outcome

RECORDS = Path(__file__).parent / "records"


@dataclass
class Record:
    """What is known of one file: how many tests it makes, or why it makes none, and what came of those that ran."""

    file: str
    tests: int = 0
    unloaded: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)


def torch_version() -> str:
    return importlib.metadata.version("torch").partition("+")[0]


def place(file: str, device: str, records: Path = RECORDS) -> Path:
    """Return where the record of ``file`` lies; the CPU's is made anew for every version of torch."""
    folder = f"{device}-{torch_version()}" if device == "cpu" else device
    return records / folder / f"{file.removesuffix('.py').replace('/', '.')}.json"


def read(file: str, device: str, records: Path = RECORDS) -> Record:
    """Return the record of ``file``, empty if there is none."""
    path = place(file, device, records)
    if not path.exists():
        return Record(file)
    held: dict[str, Any] = json.loads(path.read_text())
    rows = {name: Outcome(name, *said) for name, said in held["outcomes"].items()}
    return Record(file, held["tests"], held["unloaded"], rows)


def write(record: Record, device: str, records: Path = RECORDS) -> None:
    """Write a record, a line for each test: neither times nor traces, which differ from run to run."""
    path = place(record.file, device, records)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        f"  {json.dumps(name)}: {json.dumps([each.status, each.reason] if each.reason else [each.status])}"
        for name, each in sorted(record.outcomes.items())
    ]
    body = ",\n".join(rows)
    head = f'"file": {json.dumps(record.file)},\n"tests": {record.tests},\n"unloaded": {json.dumps(record.unloaded)}'
    path.write_text(f'{{\n{head},\n"outcomes": {{\n{body}\n}}\n}}\n')
