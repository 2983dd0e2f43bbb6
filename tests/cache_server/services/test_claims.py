"""Rules over claims: what they say yes to, and what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from cache_server.access import Grant, Scope
from cache_server.services.certificates import Certificates, PeerCertificate
from cache_server.services.claims import Condition, Rule, claim, grants, shown

READ = frozenset({Scope.READ})
PEER = {
    "subject": ((("countryName", "DE"),), (("organizationName", "team-a"),), (("commonName", "job"),)),
    "issuer": ((("commonName", "private"),),),
    "serialNumber": "0A",
    "notAfter": "Nov 30 10:00:00 2026 GMT",
    "subjectAltName": (("DNS", "job.example"), ("URI", "spiffe://c/ns/ml"), ("DNS", "job"), ("DirName", "x")),
}
END = 1_796_032_800.0


@pytest.mark.parametrize(
    ("claims", "path", "found"),
    [
        ({"sub": "x"}, "sub", "x"),
        ({"a": {"b": {"c": 1}}}, "a.b.c", 1),
        ({"kubernetes.io": {"namespace": "ml"}}, "kubernetes.io.namespace", "ml"),
        ({"https://x.example/roles": ["a"]}, "https://x.example/roles", ["a"]),
        ({"a": {"b": 1}, "a.b": 2}, "a.b", 2),
        ({"a.b": {"d": 1}, "a": {"b": {"c": 3}}}, "a.b.c", 3),
        ({"a": "text"}, "a.b", None),
        ({"a": [1]}, "a.0", None),
        ({}, "sub", None),
        ({"": {"": 1}}, "a", None),
    ],
)
def test_a_path_leads_to_the_claim_that_it_names(claims: dict[str, Any], path: str, found: object) -> None:
    assert claim(claims, path) == found


@pytest.mark.parametrize(
    ("expected", "value", "holds"),
    [
        ("main", "main", True),
        ("main", "main2", False),
        ("main", "MAIN", False),
        ("refs/*", "refs/heads/x", True),
        ("a", ["b", "a"], True),
        ("a", ["ab"], False),
        ("a", {"a": 1}, False),
        ("1", 1, False),
        (1, "1", False),
        (True, True, True),
        (True, 1, False),
        (1, True, False),
        ("*", None, False),
        ("*", [], False),
        ("*", "", True),
    ],
)
def test_a_condition_holds_for_what_it_says(expected: str | bool | int, value: object, *, holds: bool) -> None:
    assert Condition("c", (expected,)).holds({"c": value}) is holds


@pytest.mark.parametrize(
    ("owner", "project"),
    [
        ("acme", "p-acme"),
        (["acme"], "p-acme"),
        (["acme", "other"], None),
        ("Acme", None),
        ("a*", None),
        ("../x", None),
        ("a" * 80, None),
        ("", "p-"),
        (None, None),
        (7, None),
    ],
)
def test_a_project_is_filled_with_names_only(owner: object, project: str | None) -> None:
    rule = Rule((Condition("sub", ("*",)),), READ, ("p-{owner}",))
    found = rule.grants({"sub": "x", "owner": owner})
    assert found == (() if project is None else (Grant(READ, project_pattern=project, kind_pattern="*"),))


def test_all_conditions_must_hold_and_the_grants_of_all_rules_are_joined() -> None:
    both = Rule((Condition("a", ("1",)), Condition("b", ("1",))), READ, ("one",), ("graph", "eager"))
    either = Rule((Condition("a", ("1", "2")),), READ, ("two",))
    assert [grant.project_pattern for grant in grants((both, either), {"a": "1", "b": "1"})] == ["one", "one", "two"]
    assert [grant.project_pattern for grant in grants((both, either, either), {"a": "2", "b": "1"})] == ["two"]
    assert grants((both, either), {"b": "1"}) == ()


def test_a_certificate_says_who_its_owner_is_until_it_ends() -> None:
    peer = PeerCertificate.from_peer(PEER)
    assert (peer.name, peer.expires) == ("certificate:spiffe://c/ns/ml", END)
    assert claim(peer.claims, "subject.O") == ["team-a"]
    assert claim(peer.claims, "issuer.CN") == ["private"]
    assert claim(peer.claims, "dns") == ["job.example", "job"]
    rules = (Rule((Condition("subject.CN", ("job",)),), READ, ("{subject.O}",)),)
    now = END - 1
    certificates = Certificates(rules, now=lambda: now)
    principal = certificates.principal(peer)
    assert principal is not None
    assert principal.may(Scope.READ, "team-a")
    assert not principal.may(Scope.READ, "team-b")
    now = END
    assert certificates.principal(peer) is None


def test_a_certificate_without_names_is_called_by_its_serial_number() -> None:
    peer = PeerCertificate.from_peer({**PEER, "subject": (), "subjectAltName": ()})
    assert peer.name == "certificate:0A"


def test_names_cannot_forge_lines_of_a_log() -> None:
    assert shown("a\r\nb\x1b[0m\u202e") == "a??b?[0m?"
