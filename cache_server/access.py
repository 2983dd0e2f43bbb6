"""Who is calling and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from cache_server.errors import Problem
from client.names import Kind

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
        """Return whether the grant says anything about the project."""
        return fnmatchcase(project, self.project_pattern)

    def covers_kind(self, kind: Kind) -> bool:
        """Return whether the kind is covered: `foreign` never by a wildcard, unless for an admin."""
        if Scope.ADMIN in self.scopes:
            return True
        if kind is Kind.FOREIGN:
            return self.kind_pattern == kind
        return fnmatchcase(kind, self.kind_pattern)


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: how logs name it, and its rights."""

    name: str
    grants: tuple[Grant, ...]

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
        if not any(grant.covers_project(project) for grant in self.grants):
            raise Problem("not_found")
        raise Problem("forbidden", f"this needs scope {scope}")

    def has(self, scope: Scope) -> bool:
        """Return whether any grant holds the right, for calls that concern no project."""
        return any(grant.holds(scope) for grant in self.grants)


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
