from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from client.errors import WireError
from client.names import Kind
from client.record import add_to_summary, append_record
from client.statistics import Statistics, Tally
from tests.client.programs import compiled, document
from tests.fakes.waiting import HANG_SECONDS


def _some(pid: int, key: str = "a" * 64) -> Statistics:
    tally = Tally(pid)
    for name in ("lookups", "lookups", "disk_hits", "misses", "compiles"):
        tally.add(Kind.GRAPH, name)
    tally.add(Kind.GRAPH, "compile_seconds", 1.25)
    tally.add(Kind.EAGER, "bytes_down", 100)
    tally.first_use(Kind.GRAPH, key)
    return tally.snapshot()


def test_a_summary_has_exactly_the_members_that_were_promised(tmp_path):
    path = tmp_path / "summary.json"
    add_to_summary(path, _some(11))
    counts = {
        "lookups": 2,
        "hits": {"memory": 0, "disk": 1, "remote": 0},
        "misses": 1,
        "compiles": 1,
        "waits": 0,
        "errors": 0,
        "compile_seconds": 1.25,
        "saved_seconds": 0.0,
        "bytes_down": 0,
        "bytes_up": 0,
    }
    nothing = dict.fromkeys(counts, 0) | {"hits": {"memory": 0, "disk": 0, "remote": 0}}
    assert json.loads(path.read_text()) == {
        "schema": 1,
        "pids": [11],
        **counts,
        "bytes_down": 100,
        "keys": ["a" * 64],
        "by_kind": {"eager": {**nothing, "bytes_down": 100}, "graph": counts},
    }


def test_a_summary_survives_reading_and_writing(tmp_path):
    path = tmp_path / "summary.json"
    add_to_summary(path, _some(1))
    assert Statistics.from_json(json.loads(path.read_text())) == _some(1)


def test_processes_that_name_one_file_add_up(tmp_path):
    path = tmp_path / "summary.json"
    threads = [
        threading.Thread(target=add_to_summary, args=(path, _some(number, f"{number:064x}"))) for number in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    total = json.loads(path.read_text())
    assert total["lookups"] == 32
    assert total["compile_seconds"] == 20
    assert sorted(total["pids"]) == list(range(16))
    assert total["keys"] == [f"{number:064x}" for number in range(16)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.json", "summary.json.lock"]


@pytest.mark.parametrize("content", ["precious", "[]", '{"schema": 2}', '{"schema": 1, "lookups": "x"}'])
def test_a_file_that_is_no_summary_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "precious.txt"
    path.write_text(content)
    with pytest.raises(WireError, match="name another file"):
        add_to_summary(path, _some(1))
    assert path.read_text() == content


def test_lines_of_many_processes_stay_whole(tmp_path):
    path = tmp_path / "plan"
    lines = [json.dumps({"number": number, "pad": "x" * 300}).encode() + b"\n" for number in range(200)]
    threads = [
        threading.Thread(target=lambda part=part: [append_record(path, line) for line in part])
        for part in (lines[start::4] for start in range(4))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines)


def test_each_key_is_recorded_once_per_process(make_cache, tmp_path):
    path = tmp_path / "plan"
    cache = make_cache(record=str(path))
    for _ in range(3):
        cache.get_or_compile(document("a"), compiled)
        cache.get_or_compile(document("b"), compiled)
    keys = [json.loads(line)["key"] for line in path.read_text().splitlines()]
    assert keys == [document("a").key, document("b").key]


@pytest.mark.parametrize("setting", ["summary", "record"])
def test_a_file_that_cannot_be_written_costs_one_warning(make_cache, tmp_path, caplog, setting):
    cache = make_cache(**{setting: str(tmp_path / "absent" / "file")})
    for name in ("a", "b"):
        cache.get_or_compile(document(name), compiled)
    cache.close()
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert f"NEURON_CACHE_{setting.upper()}" in caplog.text


def test_closing_twice_adds_once(make_cache, tmp_path):
    path = tmp_path / "summary.json"
    cache = make_cache(summary=str(path))
    cache.get_or_compile(document(), compiled)
    cache.close()
    cache.close()
    assert json.loads(path.read_text())["lookups"] == 1


def test_time_saved_is_counted_once_for_a_key_however_often_it_is_read(make_cache):
    make_cache().get_or_compile(document(), compiled)
    cache = make_cache()
    for _ in range(3):
        cache.get_or_compile(document(), compiled)
        cache._parts.memory.remove(Kind.GRAPH, document().key)
    assert cache.statistics.disk_hits == 3
    assert cache.statistics.saved_seconds == 1.5
    assert Path(cache.settings.node_dir).exists()
