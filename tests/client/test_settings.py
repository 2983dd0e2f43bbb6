from __future__ import annotations

import os
from pathlib import Path

import pytest

from client.cache import Cache
from client.errors import ConfigurationError
from client.settings import LIMIT, Settings


def _read(**settings: str) -> Settings:
    return Settings.from_environment({"HOME": "/home/me", **settings})


def test_without_any_setting_there_is_a_private_tier_and_nothing_shared():
    settings = _read()
    assert settings == Settings(node_dir=Path("/home/me/.cache/neff-cache"))
    assert settings.url is None
    assert settings.mode == "rw"
    assert settings.wait_limit == settings.compile_limit == LIMIT == 7200


def test_the_tier_follows_the_usual_cache_directory():
    assert _read(XDG_CACHE_HOME="/scratch/me").node_dir == Path("/scratch/me/neff-cache")
    assert _read(NEURON_CACHE_NODE_DIR="/fast").node_dir == Path("/fast")


def test_a_user_without_a_home_has_no_tier_and_is_told(monkeypatch):
    def unknown(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", unknown)
    settings = Settings.from_environment({})
    assert settings.node_dir is None
    assert "NEURON_CACHE_NODE_DIR" in settings.problems[0]


def test_every_setting_is_read():
    settings = _read(
        NEURON_CACHE_URL="https://cache.example:8443",
        NEURON_CACHE_PROJECT="vision",
        NEURON_CACHE_NODE_SHARED="group",
        NEURON_CACHE_NODE_MAX_BYTES="1.5 GiB",
        NEURON_CACHE_NODE_MAX_AGE="30d",
        NEURON_CACHE_MODE="RO",
        NEURON_CACHE_LABEL="llama-8b",
        NEURON_CACHE_ON_MISS="fail",
        NEURON_CACHE_ON_ERROR="fail",
        NEURON_CACHE_WAIT_LIMIT="90m",
        NEURON_CACHE_COMPILE_LIMIT="3600",
        NEURON_CACHE_COMPILE_SLOTS="4",
        NEURON_CACHE_COMPILE_MEMORY="64GiB",
        NEURON_CACHE_SUMMARY="/out/s-%r.json",
        NEURON_CACHE_RECORD="/out/plan",
        RANK="7",
    )
    assert settings == Settings(
        url="https://cache.example:8443",
        project="vision",
        node_dir=Path("/home/me/.cache/neff-cache"),
        node_shared=True,
        node_max_bytes=3 << 29,
        node_max_age=30 * 86400,
        mode="ro",
        label="llama-8b",
        on_miss="fail",
        on_error="fail",
        wait_limit=5400,
        compile_limit=3600,
        compile_slots=4,
        compile_memory=64 << 30,
        summary="/out/s-%r.json",
        record="/out/plan",
        rank=7,
    )


WRONG = {
    "NEURON_CACHE_PROJECT": "No Such Project",
    "NEURON_CACHE_NODE_SHARED": "everybody",
    "NEURON_CACHE_NODE_MAX_BYTES": "a lot",
    "NEURON_CACHE_NODE_MAX_AGE": "a month",
    "NEURON_CACHE_MODE": "readonly",
    "NEURON_CACHE_ON_MISS": "panic",
    "NEURON_CACHE_WAIT_LIMIT": "soon",
    "NEURON_CACHE_COMPILE_LIMIT": "-1",
    "NEURON_CACHE_COMPILE_SLOTS": "0",
    "NEURON_CACHE_COMPILE_MEMORY": "0",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_setting_that_means_nothing_is_named_and_the_default_used(name):
    settings = _read(**{name: WRONG[name]})
    assert len(settings.problems) == 1
    assert name in settings.problems[0]
    assert WRONG[name] in settings.problems[0]
    assert "expected" in settings.problems[0]
    default = _read()
    assert all(
        getattr(settings, member) == getattr(default, member) for member in Settings.__slots__ if member != "problems"
    )
    with pytest.raises(ConfigurationError, match=name):
        _read(**{name: WRONG[name], "NEURON_CACHE_ON_ERROR": "fail"})


def test_a_job_is_told_once_of_each_setting_and_goes_on(tmp_path, caplog):
    cache = Cache.from_environment({"NEURON_CACHE_NODE_DIR": str(tmp_path), **WRONG})
    cache.close()
    assert len(caplog.records) == len(WRONG)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"RANK": "3", "LOCAL_RANK": "1"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "5", "LOCAL_RANK": "1"}, 5),
        ({"LOCAL_RANK": "1"}, 1),
        ({"RANK": "", "SLURM_PROCID": "9"}, 9),
        ({"RANK": "-1"}, None),
        ({"RANK": "²"}, None),
    ],
)
def test_the_rank_is_found_where_launchers_say_it(environment, rank):
    assert _read(**environment).rank == rank


def test_names_of_files_tell_processes_and_ranks_apart():
    assert _read(RANK="2").expand("/out/%r-%p.json") == Path(f"/out/2-{os.getpid()}.json")
    assert _read().expand("/out/%r.json") == Path("/out/0.json")
