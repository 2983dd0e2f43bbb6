"""Whatever one changes about a signed entry, nobody vouches for it any more."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.errors import FormatError, SignatureError
from client.key import canonical_json
from client.names import Kind
from client.signing.keys import PrivateKey
from client.signing.statements import Promotion, entry_statement, sign_entry
from client.signing.trust import TrustedKey, TrustList
from client.wire import Entry, Output, Producer

KEY = PrivateKey.generate()
TRUSTED = TrustList([TrustedKey(KEY.public, "ci")])
SIGNED_MEMBERS = ("kind", "key", "outputs", "created", "compile_seconds", "producer")

digests = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")
texts = st.text(st.characters(codec="utf-8"), max_size=20)
sizes = st.integers(0, 2**53 - 1)
outputs = st.lists(
    st.builds(Output, st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True), digests, sizes),
    min_size=1,
    max_size=4,
    unique_by=lambda output: output.name,
).map(tuple)
entries = st.builds(
    Entry,
    project=st.just("default"),
    kind=st.sampled_from(Kind),
    key=digests,
    outputs=outputs,
    created=texts,
    compile_seconds=st.floats(0, 1e6, allow_nan=False),
    producer=st.builds(Producer, texts, texts, texts),
)


def _trusts(value: Any) -> bool:
    try:
        TRUSTED.check(Entry.from_json(value))
    except (SignatureError, FormatError):
        return False
    return True


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for name, item in value.items() for leaf in _leaves(item, (*path, name))]
    if isinstance(value, list):
        return [leaf for number, item in enumerate(value) for leaf in _leaves(item, (*path, number))]
    return [path]


def _changed(value: Any) -> Any:
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1) if value else "x"
    return value + 1


@settings(max_examples=60, deadline=None)
@given(entries, st.data())
def test_any_change_of_a_signed_member_is_noticed(entry: Entry, data: st.DataObject):
    value = json.loads(json.dumps(sign_entry(entry, KEY).to_json()))
    assert _trusts(value)
    signed = {name: value[name] for name in SIGNED_MEMBERS}
    path = data.draw(st.sampled_from(_leaves(signed)))
    where = value
    for part in path[:-1]:
        where = where[part]
    where[path[-1]] = _changed(where[path[-1]])
    assert not _trusts(value)


@settings(max_examples=60, deadline=None)
@given(entries, st.integers(0, 511))
def test_any_bit_of_a_signature_counts(entry: Entry, bit: int):
    value = sign_entry(entry, KEY).to_json()
    raw = bytearray(base64.b64decode(value["signature"]["value"]))
    raw[bit // 8] ^= 1 << bit % 8
    value["signature"]["value"] = base64.b64encode(raw).decode()
    assert not _trusts(value)


@settings(max_examples=40, deadline=None)
@given(entries, st.permutations(range(4)))
def test_the_order_of_outputs_is_signed_too(entry: Entry, order: list[int]):
    signed = sign_entry(entry, KEY)
    moved = tuple(entry.outputs[place] for place in order if place < len(entry.outputs))
    assert _trusts(replace(signed, outputs=moved).to_json()) == (moved == entry.outputs)


@settings(max_examples=40, deadline=None)
@given(entries)
def test_what_is_signed_survives_the_wire_and_the_header(entry: Entry):
    signed = sign_entry(entry, KEY)
    again = Entry.from_json(json.loads(json.dumps(signed.to_json())))
    assert entry_statement(again) == entry_statement(signed)
    header = signed.to_header()
    assert header is None or _trusts(Entry.from_header(header).to_json())


@settings(max_examples=40, deadline=None)
@given(entries, texts)
def test_a_promotion_is_never_taken_for_an_entry_nor_one_for_another(entry: Entry, by: str):
    record = Promotion.of(entry, "prod", by=by, time="2026-11-30T00:00:00Z").signed(KEY)
    assert Promotion.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert record.signature is not None
    assert not _trusts(replace(entry, signature=record.signature.to_json()).to_json())
    assert canonical_json(json.loads(record.statement)) == record.statement
    changed = replace(record, by=f"{by}x")
    with pytest.raises(SignatureError, match="not what"):
        TRUSTED.check_promotion(changed)
