"""Grants as JSON, as words of the command line, and which ones are refused because they could not mean anything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cache_server.access import EVERY, Grant, Scope
from client.errors import WireError
from client.names import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_GRANTS = 32

_PROJECTS = re.compile(r"[a-z0-9*?][a-z0-9*?-]{0,62}")


def check_grant(grant: Grant) -> Grant:
    """Return the grant, or raise `WireError` for one that is malformed or opens nothing that it seems to open."""
    if not grant.scopes:
        raise WireError(f"a grant needs scopes, some of {', '.join(Scope)}")
    if not _PROJECTS.fullmatch(grant.project_pattern):
        raise WireError(
            f"{grant.project_pattern!r} is no project or pattern: expected 1 to 63 of a-z, 0-9, '-', '*' and '?'"
        )
    if grant.kind_pattern not in {EVERY, *Kind}:
        raise WireError(f"{grant.kind_pattern!r} is no kind: expected '*' or one of {', '.join(Kind)}")
    if Scope.FOREIGN in grant.scopes and grant.kind_pattern != Kind.FOREIGN:
        raise WireError("scope foreign is for kind foreign alone: give it its own grant, as in foreign@*/foreign")
    if grant.kind_pattern == Kind.FOREIGN and grant.scopes & {Scope.WRITE, Scope.DELETE, Scope.LEASE}:
        raise WireError("kind foreign takes scopes read and foreign: write, delete and lease mean nothing there")
    if Scope.METRICS in grant.scopes and grant.project_pattern != EVERY:
        raise WireError("scope metrics is about the whole server: give it a grant of its own for all projects ('*')")
    return grant


def grant_to_json(grant: Grant) -> dict[str, Any]:
    """Return a grant as it is stored and shown."""
    return {
        "scopes": [str(scope) for scope in Scope if scope in grant.scopes],
        "project": grant.project_pattern,
        "kind": grant.kind_pattern,
    }


def grant_from_json(value: Any) -> Grant:
    """Return a stored grant; raises `WireError`. Scopes of a later version are left out: they opened nothing here."""
    try:
        known = frozenset(Scope(scope) for scope in value["scopes"] if scope in set(Scope))
        return Grant(known, str(value["project"]), str(value["kind"]))
    except (KeyError, TypeError) as error:
        raise WireError(f"this is no grant: {value!r}") from error


def grants_text(grants: Iterable[Any]) -> str:
    """Return grants in their JSON form as words that `parse_grant` takes."""
    return " ".join(f"{','.join(grant['scopes'])}@{grant['project']}/{grant['kind']}" for grant in grants)


def parse_grant(text: str) -> Grant:
    """Return the grant that ``SCOPE,SCOPE@PROJECT/KIND`` means; a part left out means all. Raises `WireError`."""
    words, _, where = text.partition("@")
    project, _, kind = where.partition("/")
    scopes = [word for word in words.split(",") if word]
    unknown = [word for word in scopes if word not in set(Scope)]
    if unknown:
        raise WireError(f"{unknown[0]!r} is no scope: expected some of {', '.join(Scope)}")
    return check_grant(Grant(frozenset(map(Scope, scopes)), project or EVERY, kind or EVERY))
