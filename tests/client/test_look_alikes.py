from __future__ import annotations

import logging

import pytest

from client.cache import Cache
from client.names import Kind


def _said(caplog: pytest.LogCaptureFixture, **environ: str) -> list[str]:
    """Return the warnings of a job with two lookups in this environment."""
    with caplog.at_level(logging.WARNING, "neff_cache"):
        cache = Cache.from_environment({"NEURON_CACHE_NODE_DIR": "/proc/none", **environ})
        for number in range(2):
            cache.lookup(Kind.GRAPH, f"{number:064x}")
        cache.close()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NEURON_CACHE_DIR", "did you mean NEURON_CACHE_NODE_DIR?"),
        ("NEURON_CACHE_URLS", "did you mean NEURON_CACHE_URL?"),
        ("NEURON_CACHE_SUMARY", "did you mean NEURON_CACHE_SUMMARY?"),
        ("NEURON_CACHE_FLAVOUR", "nothing reads it"),
    ],
)
def test_a_job_is_told_once_of_a_setting_that_nobody_reads(caplog, name, meant):
    said = [text for text in _said(caplog, **{name: "/somewhere"}) if name in text]
    assert len(said) == 1
    assert meant in said[0]


def test_a_job_that_names_awss_cache_and_not_ours_is_told_which_one_is_ours(caplog):
    said = _said(caplog, NEURON_COMPILE_CACHE_URL="s3://bucket/cache")
    (text,) = [text for text in said if "NEURON_COMPILE_CACHE_URL" in text]
    assert "set NEURON_CACHE_URL" in text


def test_a_job_that_uses_both_caches_hears_nothing_of_it(caplog, tmp_path):
    environ = {"NEURON_COMPILE_CACHE_URL": "s3://bucket/cache", "NEURON_CACHE_URL": str(tmp_path)}
    assert not [text for text in _said(caplog, **environ) if "NEURON_COMPILE_CACHE_URL" in text]


@pytest.mark.parametrize(
    ("url", "guess"), [("cache.example:8080", "http://cache.example:8080"), ("my cache", "./my cache")]
)
def test_a_job_whose_address_has_no_scheme_is_told_once_what_was_meant_and_goes_on(caplog, url, guess):
    (text,) = [text for text in _said(caplog, NEURON_CACHE_URL=url) if "did you mean" in text]
    assert guess in text


def test_a_job_with_everything_in_order_hears_nothing(caplog, tmp_path):
    assert not _said(caplog, NEURON_CACHE_NODE_DIR=str(tmp_path), NEURON_CACHE_LABEL="llama")
