"""Audit: who changed what, and when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_0004"
down_revision = "20261130_0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        # SQLite numbers rows by itself only in a column of its own type
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("project", sa.String(63), nullable=True),
        sa.Column("kind", sa.String(16), nullable=True),
        sa.Column("key", sa.String(64), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("request_id", sa.String(64), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_project", "audit", ["project", "id"])
    op.create_index("ix_audit_time", "audit", ["time"])


def downgrade() -> None:
    op.drop_table("audit")
