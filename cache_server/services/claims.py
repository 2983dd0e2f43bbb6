"""Rules that turn what is known about a caller into rights.

A rule's conditions are about claims: of an identity token, or of a client certificate. All conditions of a rule must
hold; the grants of all rules that hold are joined; where none holds, the caller is known and has no rights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

from cache_server.access import Grant
from client.errors import WireError
from client.names import check_project

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cache_server.access import Scope

Expected: TypeAlias = "str | bool | int"

PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
"""A claim's name in a project, such as ``{repository_owner}``."""
_MISSING = object()
_MAX_NAME = 200


def claim(claims: Any, path: str) -> Any:
    """Return the value at a dotted path, None if there is none.

    Names may hold dots themselves (``kubernetes.io``): the longest name that is there is taken first.
    """
    found = _find(claims, path)
    return None if found is _MISSING else found


def _find(value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        return _MISSING
    end = len(path)
    while end > 0:
        head, rest = path[:end], path[end + 1 :]
        if head in value:
            found = _find(value[head], rest) if rest else value[head]
            if found is not _MISSING:
                return found
        end = path.rfind(".", 0, end)
    return _MISSING


@dataclass(frozen=True, slots=True)
class Condition:
    """The claim, or one of its members if it is a list, is as one of ``expected``: texts are shell-style patterns."""

    claim: str
    expected: tuple[Expected, ...]

    def holds(self, claims: Mapping[str, Any]) -> bool:
        """Return whether the claims are as expected; a claim that is absent never is."""
        found = claim(claims, self.claim)
        members = found if isinstance(found, list) else [found]
        return any(_matches(member, expected) for member in members for expected in self.expected)


def _matches(value: Any, expected: Expected) -> bool:
    if isinstance(expected, str):
        return isinstance(value, str) and fnmatchcase(value, expected)
    # True is 1 to Python, but not to whoever wrote the rule
    return type(value) is type(expected) and value == expected


@dataclass(frozen=True, slots=True)
class Rule:
    """Who fulfils all ``conditions`` holds ``scopes`` over the projects and kinds that match a pattern each.

    A project with a placeholder is a name, not a pattern: the claim's value fills it.
    """

    conditions: tuple[Condition, ...]
    scopes: frozenset[Scope]
    projects: tuple[str, ...] = ("*",)
    kinds: tuple[str, ...] = ("*",)

    def grants(self, claims: Mapping[str, Any]) -> tuple[Grant, ...]:
        """Return what the rule grants to these claims."""
        if not all(condition.holds(claims) for condition in self.conditions):
            return ()
        projects = [found for project in self.projects if (found := _filled(project, claims)) is not None]
        return tuple(
            Grant(self.scopes, project_pattern=project, kind_pattern=kind)
            for project in projects
            for kind in self.kinds
        )


def _filled(project: str, claims: Mapping[str, Any]) -> str | None:
    """Return a project with its placeholder filled; None if that gives no project's name."""
    placeholder = PLACEHOLDER.search(project)
    if placeholder is None:
        return project
    found = claim(claims, placeholder[1])
    value = found[0] if isinstance(found, list) and len(found) == 1 else found
    if not isinstance(value, str):
        return None
    try:
        return check_project(project.replace(placeholder[0], value))
    except WireError:
        return None


def grants(rules: Iterable[Rule], claims: Mapping[str, Any]) -> tuple[Grant, ...]:
    """Return the grants of all rules together, each once."""
    return tuple(dict.fromkeys(grant for rule in rules for grant in rule.grants(claims)))


def shown(name: str) -> str:
    """Return a name as logs and the audit trail may hold it: one line, of bounded length."""
    return "".join(char if char.isprintable() else "?" for char in name[:_MAX_NAME])
