"""The file of ``NEFF_CACHE_IDENTITY_FILE``: issuers of identity tokens, and the rules that give their callers rights.

TOML, described in ``docs/identity.md``. Everything in it is checked at start; what cannot be meant is one sentence.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from cache_server.access import Scope  # noqa: TC001 - pydantic reads the annotations
from cache_server.services.claims import PLACEHOLDER, Condition, Rule
from client.errors import ConfigurationError, WireError
from client.names import Kind, check_project
from client.token import is_loopback
from client.transports.endpoint import parse_origin

if TYPE_CHECKING:
    from pathlib import Path

# Only asymmetric ones: with a shared secret every party that verifies could also sign.
Algorithm: TypeAlias = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]

CERTIFICATE_NAME = "certificate"
"""How the names of callers with a client certificate begin; no issuer may be called so."""
_MAX_FILE = 1 << 20
_PATTERN = frozenset("*?[")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts: TypeAlias = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RuleSection(_Section):
    """One rule. ``when`` must not be empty: ``sub = "*"`` says that everybody is meant."""

    when: dict[str, Any] = Field(min_length=1)
    scopes: Annotated[list[Scope], Field(min_length=1)]
    project: Texts = ["*"]
    kind: Texts = ["*"]

    @field_validator("project")
    @classmethod
    def _check_projects(cls, projects: list[str]) -> list[str]:
        for project in projects:
            placeholders = PLACEHOLDER.findall(project)
            if not placeholders:
                continue
            try:
                # a longer text than one letter could be filled in, but hardly a shorter one
                check_project(PLACEHOLDER.sub("x", project))
                if len(placeholders) > 1:
                    # a-b and c would be a and b-c
                    raise ValueError(f"{project!r} has two placeholders, so that two callers could share one name")
            except WireError as error:
                raise ValueError(f"{project!r} does not become a project's name: {error}") from None
        return projects

    @field_validator("kind")
    @classmethod
    def _check_kinds(cls, kinds: list[str]) -> list[str]:
        for kind in kinds:
            if not _PATTERN & set(kind) and kind not in set(Kind):
                raise ValueError(f"{kind!r} is no kind: expected a pattern or one of {', '.join(Kind)}")
        return kinds

    def rule(self) -> Rule:
        """Return the rule; raises ValueError."""
        return Rule(
            conditions=tuple(_conditions(self.when)),
            scopes=frozenset(self.scopes),
            projects=tuple(self.project),
            kinds=tuple(self.kind),
        )


def _conditions(when: dict[str, Any], prefix: str = "") -> list[Condition]:
    """Return the conditions of a table; TOML makes a table in a table of a dotted name that is not quoted."""
    found: list[Condition] = []
    for name, value in when.items():
        path = prefix + name
        if isinstance(value, dict):
            found += _conditions(value, f"{path}.")
            continue
        expected = value if isinstance(value, list) else [value]
        if not expected or not all(isinstance(each, str | bool | int) for each in expected):
            raise ValueError(f"the condition on {path} is none: expected a text, a number, true, false or a list")
        found.append(Condition(path, tuple(expected)))
    return found


class _WithRules(_Section):
    rule: list[RuleSection] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_rules(self) -> _WithRules:
        self.rules()
        return self

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules."""
        return tuple(section.rule() for section in self.rule)


class Issuer(_WithRules):
    """An issuer whose tokens are taken. ``issuer`` is compared with the claim ``iss`` letter by letter."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    issuer: str
    audience: Texts
    algorithms: Annotated[list[Algorithm], Field(min_length=1)] = ["RS256", "ES256"]
    jwks_url: str | None = None
    jwks_file: str | None = None
    ca_file: str | None = None
    bearer_file: str | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name == CERTIFICATE_NAME:
            raise ValueError(f"{name!r} stands for callers with a client certificate: take another name")
        return name

    @field_validator("issuer", "jwks_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        return None if url is None else check_key_url(url)

    @model_validator(mode="after")
    def _check_keys(self) -> Issuer:
        if self.jwks_url is not None and self.jwks_file is not None:
            raise ValueError("jwks_url and jwks_file exclude each other")
        return self


def check_key_url(url: str) -> str:
    """Return an address that keys may be fetched from; raises ValueError for one that others could answer for."""
    origin, parts = parse_origin(url)
    if not origin.is_tls and not is_loopback(origin.host):
        raise ValueError(f"{url} is not encrypted: whoever sits on the way could put in keys of their own; use https")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{origin} goes with a user, a query or a fragment: expected https://host[:port][/path]")
    return url


class IdentityFile(_Section):
    """The whole file. Durations are in seconds."""

    leeway_seconds: float = Field(30.0, ge=0, le=300)
    jwks_seconds: float = Field(3600.0, ge=60, le=86400)
    keep_seconds: float = Field(86400.0, ge=0, le=30 * 86400)
    issuer: list[Issuer] = []
    certificate: _WithRules | None = None

    @model_validator(mode="after")
    def _check_unique(self) -> IdentityFile:
        for what in ("name", "issuer"):
            values = [getattr(issuer, what) for issuer in self.issuer]
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"two issuers have the {what} {twice}")
        return self


def read_identity_file(path: Path) -> IdentityFile:
    """Read and check the file; raises `ConfigurationError` in one sentence."""
    where = f"the identity file {path}"
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise ConfigurationError(f"{where} cannot be read: {error.strerror}; see --identity-file") from error
    if len(raw) > _MAX_FILE:
        raise ConfigurationError(f"{where} is larger than {_MAX_FILE} bytes: is it the right one?")
    try:
        return IdentityFile.model_validate(tomllib.loads(raw.decode()))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        said = problem["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{where}: {place + ': ' if place else ''}{said}") from error
    except ValueError as error:
        raise ConfigurationError(f"{where} is no TOML: {error}") from error
