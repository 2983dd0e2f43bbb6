"""The tables, as typed models. An index of the store, and the truth for leases, failures and tokens.

Times are seconds since the epoch by the database's clock; sizes are bytes. Types are chosen to mean the same on SQLite
and PostgreSQL. A change here needs a migration: a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import BigInteger, Float, Index, Integer, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Common base of all tables."""


class EntryState(StrEnum):
    """``ready``, or how far a removal has come; only ``ready`` entries are ever served."""

    READY = "ready"
    DELETING = "deleting"
    QUARANTINED = "quarantined"


class LeaseState(StrEnum):
    """Whether a generation still runs, and how it ended if not. One that ran out stays ``held``."""

    HELD = "held"
    PUBLISHED = "published"
    RELEASED = "released"
    FAILED = "failed"


class Addressed:
    """The columns that name a key."""

    project: Mapped[str] = mapped_column(String(63), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    key: Mapped[str] = mapped_column(String(64), primary_key=True)


class EntryRow(Addressed, Base):
    """An entry that stands in the store. ``document`` is its entry.json; the ``neff_*`` columns serve a hit alone."""

    __tablename__ = "entries"
    __table_args__ = (
        Index("ix_entries_totals", "project", "kind", "state", "stored_bytes", "compile_seconds"),
        Index("ix_entries_checked", "state", "checked", "project", "kind", "key"),
    )

    state: Mapped[str] = mapped_column(String(16))
    document: Mapped[str] = mapped_column(Text)
    header: Mapped[str | None] = mapped_column(Text)
    neff_sha256: Mapped[str | None] = mapped_column(String(64))
    neff_size: Mapped[int | None] = mapped_column(BigInteger)
    neff_encoding: Mapped[str | None] = mapped_column(String(16))
    neff_stored_size: Mapped[int | None] = mapped_column(BigInteger)
    stored_bytes: Mapped[int] = mapped_column(BigInteger)
    compile_seconds: Mapped[float] = mapped_column(Float)
    indexed: Mapped[float] = mapped_column(Float)
    label: Mapped[str | None] = mapped_column(String(255))
    compiler: Mapped[str | None] = mapped_column(String(64))
    compiler_version: Mapped[str | None] = mapped_column(String(128))
    checked: Mapped[float] = mapped_column(Float, server_default="0")
    """When all outputs were last found right: while they were taken in, or by the scrub."""


class LeaseRow(Addressed, Base):
    """The newest generation of the right to compile a key."""

    __tablename__ = "leases"
    __table_args__ = (Index("ix_leases_state", "state", "expires"),)

    generation: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(16))
    token_hash: Mapped[str] = mapped_column(String(64))
    holder: Mapped[str] = mapped_column(Text)
    since: Mapped[float] = mapped_column(Float)
    expires: Mapped[float] = mapped_column(Float)
    owner: Mapped[str | None] = mapped_column(String(255))
    """Whose it is, to be counted: see `cache_server.lease_rules.LeaseRequest`."""


class FailureRow(Base):
    """A compile that failed under a lease; kept for as long as the rules of `cache_server.lease_rules` ask."""

    __tablename__ = "failures"
    __table_args__ = (Index("ix_failures_key", "project", "kind", "key", "time"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    project: Mapped[str] = mapped_column(String(63))
    kind: Mapped[str] = mapped_column(String(16))
    key: Mapped[str] = mapped_column(String(64))
    generation: Mapped[int] = mapped_column(BigInteger)
    failure_class: Mapped[str] = mapped_column(String(16))
    text: Mapped[str] = mapped_column(Text)
    log: Mapped[str] = mapped_column(Text)
    host: Mapped[str] = mapped_column(Text)
    time: Mapped[float] = mapped_column(Float)


class TokenRow(Base):
    """A bearer token, by its SHA-256: the token itself is never stored. ``scopes`` are separated by blanks.

    A token with several grants has them in ``grants`` (JSON), and no scopes: to servers of the version before, which do
    not know that column, it opens nothing. ``rate``: requests a second, None for what the settings say.
    """

    __tablename__ = "tokens"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    label: Mapped[str] = mapped_column(String(255))
    scopes: Mapped[str] = mapped_column(String(255))
    project_pattern: Mapped[str] = mapped_column(String(255))
    kind_pattern: Mapped[str] = mapped_column(String(255))
    created: Mapped[float] = mapped_column(Float)
    expires: Mapped[float | None] = mapped_column(Float)
    revoked: Mapped[float | None] = mapped_column(Float)
    grants: Mapped[str | None] = mapped_column(Text)
    created_by: Mapped[str | None] = mapped_column(String(255))
    rate: Mapped[float | None] = mapped_column(Float)
    last_used: Mapped[float | None] = mapped_column(Float)


class RevocationRow(Base):
    """An entry that was deleted as poisoned: clients drop it from their own tiers."""

    __tablename__ = "revocations"
    __table_args__ = (Index("ix_revocations_project", "project", "time"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    project: Mapped[str] = mapped_column(String(63))
    kind: Mapped[str] = mapped_column(String(16))
    key: Mapped[str] = mapped_column(String(64))
    sha256: Mapped[str] = mapped_column(String(64))
    time: Mapped[float] = mapped_column(Float)


class PlanRow(Base):
    """A recorded run, by name: JSON Lines as clients write them."""

    __tablename__ = "plans"

    project: Mapped[str] = mapped_column(String(63), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[str] = mapped_column(Text)
    updated: Mapped[float] = mapped_column(Float)


class ReportedRow(Base):
    """A running total of what clients reported at exit, by counter name."""

    __tablename__ = "reported"

    project: Mapped[str] = mapped_column(String(63), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    counter: Mapped[str] = mapped_column(String(64), primary_key=True)
    total: Mapped[float] = mapped_column(Float)


class ScrubRow(Base):
    """The run of the scrub that goes on, or the last one; a single row. Entries checked before ``horizon`` are due."""

    __tablename__ = "scrub"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    horizon: Mapped[float] = mapped_column(Float)
    started: Mapped[float] = mapped_column(Float)
    ended: Mapped[float | None] = mapped_column(Float)
    entries: Mapped[int] = mapped_column(BigInteger)
    bytes_read: Mapped[int] = mapped_column(BigInteger)
    quarantined: Mapped[int] = mapped_column(BigInteger)
    unreadable: Mapped[int] = mapped_column(BigInteger)
    stopped: Mapped[float | None] = mapped_column(Float)
    """When it stopped because too much in a row could not be verified; ``reason`` says so in words."""
    reason: Mapped[str | None] = mapped_column(Text)


class SuspicionRow(Addressed, Base):
    """An output that one look of the scrub found wrong, what it found, and when: a second look, later, decides."""

    __tablename__ = "suspicions"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    found: Mapped[str] = mapped_column(Text)
    time: Mapped[float] = mapped_column(Float)


class UsageRow(Addressed, Base):
    """How an entry was used: see `cache_server.services.usage` for what ``heat`` is."""

    __tablename__ = "usage"

    hits: Mapped[int] = mapped_column(BigInteger)
    heat: Mapped[float] = mapped_column(Float)
    last_used: Mapped[float] = mapped_column(Float)


class MetaRow(Base):
    """The newest revision of a row of policy, as `cache_server.services.meta` keeps it in the store too.

    ``project`` is that of the row, or None for what concerns the whole server. ``document`` is JSON.
    """

    __tablename__ = "meta"
    __table_args__ = (Index("ix_meta_project", "table_name", "project"),)

    table_name: Mapped[str] = mapped_column(String(32), primary_key=True)
    row_id: Mapped[str] = mapped_column(String(200), primary_key=True)
    revision: Mapped[int] = mapped_column(BigInteger)
    project: Mapped[str | None] = mapped_column(String(63))
    document: Mapped[str] = mapped_column(Text)
    updated: Mapped[float] = mapped_column(Float)


class JobRow(Base):
    """A job that one server at a time runs: who does, until when unless renewed, and when it last ended well."""

    __tablename__ = "jobs"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    expires: Mapped[float] = mapped_column(Float)
    finished: Mapped[float] = mapped_column(Float)


class AuditRow(Base):
    """A change that somebody made, written in the transaction that made it. ``detail`` is a JSON object."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_project", "project", "id"), Index("ix_audit_time", "time"))

    # SQLite numbers rows by itself only in a column of its own type
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    time: Mapped[float] = mapped_column(Float)
    actor: Mapped[str] = mapped_column(String(255))
    action: Mapped[str] = mapped_column(String(64))
    project: Mapped[str | None] = mapped_column(String(63))
    kind: Mapped[str | None] = mapped_column(String(16))
    key: Mapped[str | None] = mapped_column(String(64))
    detail: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(String(64))
