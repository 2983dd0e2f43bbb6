"""Who is calling and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from cache_server.errors import Problem
from client.names import Kind, check_project

if TYPE_CHECKING:
    from cache_server.settings import Anonymous


class Scope(StrEnum):
    """One right. `ADMIN` holds all others; nothing else implies another."""

    READ = "read"
    WRITE = "write"
    LEASE = "lease"
    DELETE = "delete"
    FOREIGN = "foreign"
    METRICS = "metrics"
    ADMIN = "admin"


EVERY = "*"
"""The pattern that covers all projects, those to come too."""
OWN = "-"
"""Stands in a path where a project would, for what concerns the caller: no project's name begins so."""

_METRICS_ALONE = frozenset({Scope.METRICS})


class Actor(NamedTuple):
    """Who makes a change, as the audit trail names it, and in which request."""

    name: str
    request_id: str | None = None


SERVER = Actor("server")
"""The server itself: collection, scrub, what it finds damaged."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights over the projects and kinds that match two shell-style patterns."""

    scopes: frozenset[Scope]
    project_pattern: str = "*"
    kind_pattern: str = "*"

    def holds(self, scope: Scope) -> bool:
        """Return whether the right is among ours."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def covers_project(self, project: str) -> bool:
        """Return whether the grant is about the project: scope ``metrics`` alone is about no single one."""
        return fnmatchcase(project, self.project_pattern) and not self.scopes <= _METRICS_ALONE

    def covers_kind(self, kind: Kind) -> bool:
        """Return whether the kind is covered: `foreign` never by a wildcard, unless for an admin."""
        if Scope.ADMIN in self.scopes:
            return True
        if kind is Kind.FOREIGN:
            return self.kind_pattern == kind
        return fnmatchcase(kind, self.kind_pattern)


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: how logs name it, its rights, and for a stored token its public id and its own rate limit.

    ``rate``: requests a second; None: what the settings say.
    """

    name: str
    grants: tuple[Grant, ...]
    token_id: str | None = None
    rate: float | None = None

    @property
    def shown(self) -> str:
        """The name with the token's id: labels may be the same."""
        return self.name if self.token_id is None else f"{self.name} ({self.token_id})"

    def may(self, scope: Scope, project: str, kind: Kind | None = None) -> bool:
        """Return whether the caller has the right; ``kind`` None asks about the project as a whole.

        What changes entries of kind ``foreign`` needs the scope of that name.
        """
        if kind is Kind.FOREIGN and scope in {Scope.WRITE, Scope.DELETE}:
            scope = Scope.FOREIGN
        return any(
            grant.holds(scope) and grant.covers_project(project) and (kind is None or grant.covers_kind(kind))
            for grant in self.grants
        )

    def require(self, scope: Scope, project: str, kind: Kind | None = None) -> None:
        """Raise `Problem` unless the caller has the right: ``not_found`` for whoever may not know the project.

        An outsider cannot tell a project that is absent from one that is forbidden.
        """
        if self.may(scope, project, kind):
            return
        self.require_some(project)
        raise Problem("forbidden", f"this needs scope {scope}")

    def require_some(self, project: str) -> None:
        """Raise `Problem` ``not_found`` unless the caller has some right on the project."""
        if not any(grant.covers_project(project) for grant in self.grants):
            raise Problem("not_found")

    def has(self, scope: Scope) -> bool:
        """Return whether the right is held on all projects, for calls that concern the whole server.

        One who has it on some projects must neither decide about the others nor learn of them.
        """
        return any(grant.holds(scope) and grant.project_pattern == EVERY for grant in self.grants)


ADMIN = Principal("admin", (Grant(frozenset({Scope.ADMIN})),))

_ANONYMOUS_SCOPES: dict[Anonymous, frozenset[Scope]] = {
    "none": frozenset(),
    "read": frozenset({Scope.READ}),
    "all": frozenset({Scope.READ, Scope.WRITE, Scope.LEASE}),
}


def anonymous(mode: Anonymous) -> Principal | None:
    """Return the caller without a token, or None if there is no such thing here."""
    scopes = _ANONYMOUS_SCOPES[mode]
    return Principal("anonymous", (Grant(scopes),)) if scopes else None


def check_path(principal: Principal, path: str) -> None:
    """Refuse paths below a project on which the caller has no right at all, whether or not there is such a route.

    Raises `Problem` ``not_found``, before anything is looked up: an outsider gets the same answer to every method, for
    every project but his own. Raises `client.errors.WireError` for what is no project's name.
    """
    match path.split("/", 3):
        case ["", "v1", project, _] if project != OWN:
            principal.require_some(check_project(project))
