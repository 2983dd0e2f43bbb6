"""The key: everything that matters changes it, nothing else does."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from client.errors import ConfigurationError, WireError
from client.key import (
    CompilerIdentity,
    Ir,
    KeyDocument,
    canonical_json,
    check_document,
    key_of,
    keyed_flags,
    normalise_compiler_version,
)
from client.names import Kind

DOCUMENT = KeyDocument(
    kind=Kind.GRAPH,
    ir=Ir("stablehlo", "vhlo", "1.0.0", "5" * 64),
    compiler=CompilerIdentity("neuronx-cc", "2.27.5334.0+f702b353"),
    target="trn2",
    logical_cores=2,
    flags=("-O2", "--model-type", "transformer"),
)


def test_a_key_never_changes_between_releases():
    # computed once by hand from the design's example; a change here makes every stored entry a miss
    expected = (
        b'{"compiler":{"name":"neuronx-cc","version":"2.27.5334.0+f702b353"},"extra":{},'
        b'"flags":["-O2","--model-type","transformer"],"ir":{"dialect":"stablehlo","format":"vhlo",'
        b'"sha256":"' + b"5" * 64 + b'","version":"1.0.0"},"kernels":[],"kind":"graph","logical_cores":2,'
        b'"schema":1,"target":"trn2"}'
    )
    assert canonical_json(DOCUMENT.to_json()) == expected
    assert DOCUMENT.key == hashlib.sha256(expected).hexdigest()


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": Kind.EAGER},
        {"ir": Ir("stablehlo", "vhlo", "1.0.0", "6" * 64)},
        {"ir": Ir("stablehlo", "vhlo", "1.1.0", "5" * 64)},
        {"compiler": CompilerIdentity("neuronx-cc", "2.27.5334.0+f702b354")},
        {"compiler": CompilerIdentity("xla-cpu", "2.27.5334.0+f702b353")},
        {"target": "trn1"},
        {"logical_cores": 1},
        {"flags": ("--model-type", "transformer", "-O2")},
        {"flags": ("-O2", "--model-type transformer")},
        {"flags": ("-O2", "--model-type", "transformer", "")},
        {"kernels": ("7" * 64,)},
        {"extra": {"xla_flags": ""}},
    ],
    ids=str,
)
def test_an_artifact_of_other_input_is_never_found(changed):
    assert dataclasses.replace(DOCUMENT, **changed).key != DOCUMENT.key


@pytest.mark.parametrize("count", [1, 2, 3, 10, 50])
def test_the_last_of_many_options_still_counts(count):
    flags = tuple(f"--option-{index}=1" for index in range(count))
    other = (*flags[:-1], f"--option-{count - 1}=2")
    assert dataclasses.replace(DOCUMENT, flags=flags).key != dataclasses.replace(DOCUMENT, flags=other).key


def test_words_that_only_name_outputs_do_not_cause_a_miss():
    words = "-O2 --output /a/b.neff --logfile=x.txt --lnc 2 --verbose 35 -o c --workdir=/w --logfile-verbose 1 -O1"
    assert keyed_flags(words.split()) == ("-O2", "--lnc", "2", "-O1")


@pytest.mark.parametrize("word", ["--outputs=3", "--verbosely", "--work", "-output", "--log_level=3"])
def test_a_word_that_only_looks_like_an_output_is_part_of_the_key(word):
    assert keyed_flags([word]) == (word,)


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("NeuronX Compiler version 2.27.5334.0+f702b353\n\nPython version 3.12.1", "2.27.5334.0+f702b353"),
        ("2.16.372+4a9b2326", "2.16.372+4a9b2326"),
        ("neuronx-cc 2.27.5334.0+f702b353-dirty", "2.27.5334.0+f702b353"),
    ],
)
def test_one_compiler_has_one_version_however_it_is_asked(printed, version):
    assert normalise_compiler_version(printed) == version


@pytest.mark.parametrize("printed", ["", "2.27", "command not found", "1.2.3", "HWM version 2.17.0.0-5e1a5d2"])
def test_a_compiler_of_unknown_version_is_refused(printed):
    with pytest.raises(ConfigurationError, match="no compiler version"):
        normalise_compiler_version(printed)


def test_a_document_under_another_key_or_kind_is_refused():
    document = DOCUMENT.to_json()
    assert check_document(document, kind=Kind.GRAPH, key=DOCUMENT.key) is document
    with pytest.raises(WireError, match="hashes to"):
        check_document(document, kind=Kind.GRAPH, key="0" * 64)
    with pytest.raises(WireError, match="kind"):
        check_document(document, kind=Kind.EAGER, key=DOCUMENT.key)
    with pytest.raises(WireError, match="schema"):
        check_document({**document, "schema": 2}, kind=Kind.GRAPH, key=key_of({**document, "schema": 2}))
    with pytest.raises(WireError, match="JSON object"):
        check_document([document], kind=Kind.GRAPH, key=DOCUMENT.key)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, 2**60, b"x"], ids=str)
def test_what_json_cannot_hold_exactly_has_no_key(value):
    with pytest.raises(WireError, match="canonical"):
        canonical_json({"a": value})
