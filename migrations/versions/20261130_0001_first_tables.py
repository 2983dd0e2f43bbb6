"""The first tables: entries, leases, failures, tokens, revocations, plans, reported totals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_0001"
down_revision = None
branch_labels = None
depends_on = None


def _address() -> list[sa.Column]:
    return [
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
    ]


def upgrade() -> None:
    op.create_table(
        "entries",
        *_address(),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("header", sa.Text(), nullable=True),
        sa.Column("neff_sha256", sa.String(64), nullable=True),
        sa.Column("neff_size", sa.BigInteger(), nullable=True),
        sa.Column("neff_encoding", sa.String(16), nullable=True),
        sa.Column("neff_stored_size", sa.BigInteger(), nullable=True),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("compile_seconds", sa.Float(), nullable=False),
        sa.Column("indexed", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("project", "kind", "key"),
    )
    op.create_index("ix_entries_totals", "entries", ["project", "kind", "state", "stored_bytes", "compile_seconds"])
    op.create_table(
        "leases",
        *_address(),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("project", "kind", "key"),
    )
    op.create_index("ix_leases_state", "leases", ["state", "expires"])
    op.create_table(
        "failures",
        sa.Column("id", sa.Integer(), nullable=False),
        *_address(),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("failure_class", sa.String(16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_failures_key", "failures", ["project", "kind", "key", "time"])
    op.create_table(
        "tokens",
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("label", sa.String(255), nullable=False),
        sa.Column("scopes", sa.String(255), nullable=False),
        sa.Column("project_pattern", sa.String(255), nullable=False),
        sa.Column("kind_pattern", sa.String(255), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=True),
        sa.Column("revoked", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("token_hash"),
    )
    op.create_table(
        "revocations",
        sa.Column("id", sa.Integer(), nullable=False),
        *_address(),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_revocations_project", "revocations", ["project", "time"])
    op.create_table(
        "plans",
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("updated", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name"),
    )
    op.create_table(
        "reported",
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("counter", sa.String(64), nullable=False),
        sa.Column("total", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("project", "kind", "counter"),
    )


def downgrade() -> None:
    for table in ("reported", "plans", "revocations", "tokens", "failures", "leases", "entries"):
        op.drop_table(table)
