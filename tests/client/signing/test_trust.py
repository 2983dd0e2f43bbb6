from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from client.errors import FormatError, SignatureError
from client.names import Kind
from client.signing.keys import PrivateKey
from client.signing.statements import sign_entry
from client.signing.trust import TrustedKey, TrustList
from tests.client.programs import document
from tests.client.signing.signers import line, promotion, signed, trusting

CI, RELEASE, STRANGER = (PrivateKey.generate() for _ in range(3))
BUILDERS = line(CI, "ci", projects=("staging",))
PROMOTERS = line(RELEASE, "release", projects=("prod",))


def cause(trusted: TrustList, entry: Any) -> str:
    with pytest.raises(SignatureError) as raised:
        trusted.check(entry)
    return raised.value.cause


def test_an_entry_is_vouched_for_by_whom_is_trusted_and_nobody_else():
    entry = signed(CI)
    assert trusting(line(CI)).check(entry).name == "ci"
    assert cause(trusting(), entry) == "unknown_key"
    assert cause(trusting(line(STRANGER)), entry) == "unknown_key"
    assert cause(trusting(line(CI)), replace(entry, signature=None)) == "unsigned"


def test_a_strangers_signature_under_a_trusted_id_is_worth_nothing():
    entry = signed(STRANGER)
    assert entry.signature is not None
    forged = replace(entry, signature={**entry.signature, "key_id": CI.public.key_id})
    assert cause(trusting(line(CI)), forged) == "wrong"


@pytest.mark.parametrize(
    "signature",
    [
        {},
        {"alg": "none", "key_id": "0" * 16, "value": ""},
        {"alg": "ed25519", "key_id": "0" * 16, "value": "AAAA"},
        {"alg": "ed25519", "key_id": 7, "value": "AAAA"},
        {"alg": "ed25519", "key_id": "../../etc/passwd", "value": "A" * 88},
        {"alg": "ED25519", "key_id": "0" * 16, "value": "A" * 86 + "=="},
    ],
)
def test_a_signature_that_is_none_is_no_signature(signature: dict[str, Any]):
    assert cause(trusting(line(CI)), replace(signed(CI), signature=signature)) == "malformed"


def test_a_document_of_another_key_spoils_an_entry_whose_signature_is_right():
    entry = signed(CI)
    assert cause(trusting(line(CI)), replace(entry, key_document=document("another").to_json())) == "wrong_key"


def test_a_revoked_key_is_never_believed_again_whenever_it_signed():
    entry = signed(CI)
    assert cause(trusting(line(CI, revoked="2027-01-01T00:00:00Z")), entry) == "revoked"


@pytest.mark.parametrize(
    ("bounds", "good"),
    [
        ({"not_before": "2026-11-29T23:00:00Z"}, True),
        ({"not_before": "2026-11-29T23:00:01Z"}, False),
        ({"not_after": "2026-11-29T23:00:00Z"}, True),
        ({"not_after": "2026-11-30T00:30:00+02:00"}, False),
        ({"not_before": "2026-11-29", "not_after": "2026-11-30"}, True),
    ],
)
def test_a_retired_key_vouches_for_what_it_signed_in_its_time(bounds: dict[str, str], good: bool):
    trusted = trusting(line(CI, **bounds))
    if good:
        assert trusted.check(signed(CI)).name == "ci"
    else:
        assert cause(trusted, signed(CI)) == "outside"


def test_a_time_that_cannot_be_read_is_in_no_keys_time():
    entry = sign_entry(replace(signed(CI), created="yesterday"), CI)
    assert trusting(line(CI)).check(entry).name == "ci"
    assert cause(trusting(line(CI, not_after="2030-01-01")), entry) == "outside"


def test_a_key_speaks_only_for_its_kinds_and_projects():
    entry = signed(CI)
    assert cause(trusting(line(CI, kinds=(Kind.CC,))), entry) == "not_allowed"
    assert cause(trusting(line(CI, projects=("staging-*",))), entry) == "not_allowed"
    assert trusting(line(CI, kinds=(Kind.GRAPH,), projects=("def*",))).check(entry).name == "ci"


def test_a_promoted_entry_is_vouched_for_by_builder_and_promoter_together():
    entry = signed(CI, project="staging")
    record = promotion(entry, "prod", RELEASE)
    copy = replace(entry, project="prod", promotions=(record.to_json(),))
    assert trusting(BUILDERS, PROMOTERS).check(copy).name == "ci"
    assert cause(trusting(BUILDERS), copy) == "unknown_key"
    assert cause(trusting(PROMOTERS), copy) == "unknown_key"
    assert cause(trusting(replace(BUILDERS, revoked="2026-12-01"), PROMOTERS), copy) == "revoked"
    assert cause(trusting(BUILDERS, replace(PROMOTERS, revoked="2026-12-01")), copy) == "revoked"


def test_no_record_of_a_promotion_serves_another_entry_project_or_promoter():
    entry, other = signed(CI, project="staging"), signed(CI, document("other"), project="staging")
    trusted = trusting(BUILDERS, PROMOTERS)
    good, copy = promotion(entry, "prod", RELEASE), replace(entry, project="prod")
    assert cause(trusted, copy) == "not_allowed"
    for record, expected in (
        (promotion(other, "prod", RELEASE), "wrong"),
        (promotion(entry, "prod", CI), "not_allowed"),
        (promotion(entry, "prod", STRANGER), "unknown_key"),
        (promotion(entry, "prod-eu", RELEASE), "not_allowed"),
        (replace(good, time="2030-01-01T00:00:00Z"), "wrong"),
        (replace(good, by="somebody else"), "wrong"),
        (replace(good, source="dev"), "not_allowed"),
        (replace(good, signature=None), "unsigned"),
    ):
        assert cause(trusted, replace(copy, promotions=(record.to_json(),))) == expected, record
    rebuilt = sign_entry(replace(copy, compile_seconds=9.0), CI)
    assert cause(trusted, replace(rebuilt, promotions=(good.to_json(),))) == "wrong"


def test_an_entry_may_be_promoted_twice_and_each_step_counts():
    third = PrivateKey.generate()
    entry = signed(CI, project="staging")
    first = promotion(entry, "prod", RELEASE)
    second = promotion(replace(entry, project="prod"), "edge", third)
    copy = replace(entry, project="edge", promotions=(first.to_json(), second.to_json()))
    trusted = trusting(BUILDERS, PROMOTERS, line(third, "edge", projects=("edge",)))
    assert trusted.check(copy).name == "ci"
    assert cause(trusted, replace(copy, promotions=(second.to_json(),))) == "not_allowed"
    assert cause(trusted, replace(copy, promotions=(first.to_json(),))) == "not_allowed"
    assert cause(trusting(BUILDERS, line(third, "edge", projects=("edge",))), copy) == "unknown_key"


def test_a_list_reads_back_as_it_was_written():
    keys = [
        line(CI, "ci", kinds=(Kind.GRAPH, Kind.CC), projects=("staging", "dev-*"), not_before="2026-01-01"),
        line(RELEASE, "release", not_after="2027-01-01T00:00:00Z", revoked="2026-12-01"),
    ]
    text = f"# who may sign\n\n{TrustList(keys).text}"
    assert TrustList.parse(text).keys == tuple(keys)


@pytest.mark.parametrize(
    "options",
    ["unknown=1", "not-after=soon", "kinds=neff", "projects", "projects=", "not-after=2026-01-01 not-after=2027-01-01"],
)
def test_a_bound_that_is_not_understood_makes_the_list_unreadable(options: str):
    with pytest.raises(FormatError, match="line 2"):
        TrustList.parse(f"# a comment\n{CI.public} ci {options}\n")


def test_a_key_that_is_listed_twice_is_refused_lest_the_looser_line_wins():
    with pytest.raises(FormatError, match="once"):
        TrustList.parse(f"{CI.public} a kinds=cc\n{CI.public} b\n")


def test_a_revoked_key_comes_back_by_no_change():
    trusted = trusting(line(CI)).revoke(line(CI), "2026-12-01")
    revoked = trusted.keys[0]
    with pytest.raises(FormatError, match="revoked"):
        trusted.with_key(line(CI))
    with pytest.raises(FormatError, match="revoked"):
        trusted.without(revoked)
    assert isinstance(trusted.with_key(replace(revoked, name="old")).keys[0], TrustedKey)
