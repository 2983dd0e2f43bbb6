"""Whose signatures a project asks for: its trusted keys, and whether an entry without one may be published.

Asked at a publish and at a promotion. What stands already is served as before: clients judge for themselves what they
run, because a store may be written past its server; `Trust.unsound` lists what would not pass today.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select

from cache_server.clock import rfc3339
from cache_server.database import policy
from cache_server.database.models import EntryRow, EntryState
from cache_server.errors import Problem
from client.errors import ConfigurationError, FormatError, SignatureError
from client.signing.trust import TrustedKey, TrustList
from client.wire import Entry

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from cache_server.access import Actor
    from cache_server.database.engine import Database
    from cache_server.services.audit import Audit
    from cache_server.services.meta import Meta
    from client.signing.statements import Promotion
    from client.wire import Json

MAX_KEYS = 256
_BATCH = 500


class ProjectTrust(NamedTuple):
    """What a project asks for; by default nothing, of anybody."""

    required: bool = False
    trusted: TrustList = TrustList()

    @classmethod
    def read(cls, source: Connection | Session, project: str) -> ProjectTrust:
        """Read the rows of policy; raises `Problem` ``not_ready`` for a line that is not known here."""
        asked = policy.value(source, policy.TRUST, policy.row_of(project)) or {}
        try:
            keys = [_key(row.value) for row in policy.rows(source, policy.TRUSTED_KEYS, project)]
        except FormatError as error:
            # of a newer server: a bound that is not understood must not be passed over
            raise Problem("not_ready", f"the trusted keys of project {project} cannot be read: {error}") from error
        return cls(asked.get("signatures") == "required", TrustList(keys))

    def to_json(self) -> Json:
        """Return it as plain JSON values."""
        return {
            "signatures": "required" if self.required else "optional",
            "keys": [key.line for key in self.trusted.keys],
        }


class Trust:
    """Trusted keys of projects, and the look at entries before they stand. Blocks: worker threads only."""

    def __init__(self, *, database: Database, meta: Meta, audit: Audit) -> None:
        self._database = database
        self._meta = meta
        self._audit = audit

    def of(self, project: str) -> ProjectTrust:
        """Return what the project asks for."""
        with self._database.reading() as connection:
            return ProjectTrust.read(connection, project)

    def admit(self, entry: Entry) -> None:
        """Return if the entry may stand in its project.

        Raises `Problem`: ``signature_required`` for one without a signature where the project asks for one,
        ``signature_invalid`` for one that is wrong, or by a key that is revoked or, where signatures are required, not
        trusted for the project.
        """
        asked = self.of(entry.project)
        if not asked.required and (entry.signature is None or not asked.trusted.keys):
            return
        _judge(asked, entry)

    def admit_promotion(self, record: Promotion) -> None:
        """Return if the record of a promotion may stand in the project promoted to; raises `Problem` as `admit`."""
        asked = self.of(record.target)
        if record.signature is None:
            raise Problem("signature_required", "the record of a promotion is signed by whoever promotes")
        if asked.trusted.keys or asked.required:
            try:
                asked.trusted.check_promotion(record)
            except SignatureError as error:
                raise Problem("signature_invalid", f"the record of the promotion is refused: {error}") from error

    def require(self, project: str, *, required: bool, by: Actor) -> None:
        """Ask for signatures on what is published in the project, or ask no more."""
        value = {"signatures": "required" if required else "optional"}
        row = policy.row_of(project)
        with self._database.transaction() as session:
            if policy.value(session, policy.TRUST, row) != value:
                self._meta.write(session, policy.TRUST, row, value, project=project)
                self._audit.change(session, by, "trust.set", project=project, detail=value)

    def put(self, project: str, key: TrustedKey, *, by: Actor) -> None:
        """Trust a key, or change what it may sign; raises `Problem` ``invalid`` for one that was revoked."""
        with self._database.transaction() as session:
            trusted = ProjectTrust.read(session, project).trusted
            try:
                after = trusted.with_key(key)
            except FormatError as error:
                raise Problem("invalid", str(error)) from error
            if len(after.keys) > MAX_KEYS:
                raise Problem("invalid", f"a project trusts at most {MAX_KEYS} keys: remove some that are not used")
            self._write(session, (project, key.key_id), _value(key), "trust.key", by=by)

    def revoke(self, project: str, key_id: str, *, by: Actor) -> None:
        """Never believe a key again; raises `Problem` ``not_found``."""
        with self._database.transaction() as session:
            key = _find(ProjectTrust.read(session, project).trusted, key_id)
            if key.revoked is None:
                key = replace(key, revoked=rfc3339(self._database.now(session)))
                self._write(session, (project, key_id), _value(key), "trust.revoke", by=by)

    def remove(self, project: str, key_id: str, *, by: Actor) -> None:
        """Forget a key; raises `Problem` ``not_found``, ``invalid`` for a revoked one, which is remembered."""
        with self._database.transaction() as session:
            trusted = ProjectTrust.read(session, project).trusted
            try:
                trusted.without(_find(trusted, key_id))
            except FormatError as error:
                raise Problem("invalid", str(error)) from error
            self._write(session, (project, key_id), None, "trust.remove", by=by)

    def _write(self, session: Session, place: tuple[str, str], value: Json | None, action: str, *, by: Actor) -> None:
        project, key_id = place
        # a row for each key: of two changes at once none is lost, and what is revoked in any revision stays so
        self._meta.write(session, policy.TRUSTED_KEYS, f"{project}.{key_id}", value, project=project)
        self._audit.change(session, by, action, project=project, detail={"key_id": key_id, "key": value})

    def unsound(self, project: str, *, limit: int) -> list[Json]:
        """Return the project's entries that could not be published today, and why; at most ``limit``."""
        asked = self.of(project)._replace(required=True)
        found: list[Json] = []
        after = ("", "")
        while len(found) < limit:
            documents = self._page(project, after)
            if not documents:
                break
            for kind, key, document in documents:
                after = (kind, key)
                try:
                    _judge(asked, Entry.from_json(json.loads(document)))
                except (Problem, FormatError, ValueError) as error:
                    name = error.kind.name if isinstance(error, Problem) else "invalid"
                    found.append({"kind": kind, "key": key, "name": name, "detail": str(error)})
        return found[:limit]

    def _page(self, project: str, after: tuple[str, str]) -> list[tuple[str, str, str]]:
        kind, key = after
        statement = (
            select(EntryRow.kind, EntryRow.key, EntryRow.document)
            .where(
                EntryRow.project == project,
                EntryRow.state == EntryState.READY,
                (EntryRow.kind > kind) | ((EntryRow.kind == kind) & (EntryRow.key > key)),
            )
            .order_by(EntryRow.kind, EntryRow.key)
            .limit(_BATCH)
        )
        with self._database.reading() as connection:
            return [(row.kind, row.key, row.document) for row in connection.execute(statement)]


def _key(value: Json) -> TrustedKey:
    return replace(TrustedKey.parse(value["line"]), revoked=value.get("revoked"))


def _value(key: TrustedKey) -> Json:
    """Return a key as a row: that it is revoked stands apart, where `cache_server.services.meta` never loses it."""
    return {"line": replace(key, revoked=None).line, "revoked": key.revoked}


def _find(keys: TrustList, key_id: str) -> TrustedKey:
    key = keys.get(key_id)
    if key is None:
        raise Problem("not_found", f"the project trusts no key {key_id}")
    return key


def _judge(asked: ProjectTrust, entry: Entry) -> None:
    try:
        asked.trusted.check(replace(entry, key_document=None))  # that was checked against the key before
    except SignatureError as error:
        if not asked.required and error.cause == "unknown_key":
            return
        name = "signature_required" if error.cause == "unsigned" else "signature_invalid"
        raise Problem(name, f"the entry is refused: {error}") from error
    except ConfigurationError as error:
        raise Problem("not_ready", str(error)) from error
