"""Integrity: when each entry's outputs were last hashed, and how far the scrub is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_0003"
down_revision = "20261130_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # a default in the database: servers of the version before go on inserting without the column
    op.add_column("entries", sa.Column("checked", sa.Float(), server_default="0", nullable=False))
    op.create_index("ix_entries_checked", "entries", ["state", "checked", "project", "kind", "key"])
    op.create_table(
        "scrub",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("horizon", sa.Float(), nullable=False),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("bytes_read", sa.BigInteger(), nullable=False),
        sa.Column("quarantined", sa.BigInteger(), nullable=False),
        sa.Column("unreadable", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    op.drop_table("scrub")
    op.drop_index("ix_entries_checked", "entries")
    op.drop_column("entries", "checked")
