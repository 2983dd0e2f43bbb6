"""INSERT … ON CONFLICT: the same words on SQLite and PostgreSQL, but two constructs in SQLAlchemy."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy.dialects import postgresql, sqlite

if TYPE_CHECKING:
    from sqlalchemy.orm import DeclarativeBase, Session

Insert: TypeAlias = "postgresql.Insert | sqlite.Insert"


def insert_into(session: Session, model: type[DeclarativeBase]) -> Insert:
    """Return an INSERT that takes ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
    return sqlite.insert(model) if session.get_bind().dialect.name == "sqlite" else postgresql.insert(model)
