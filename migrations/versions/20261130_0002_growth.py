"""Growth: usage, rows of policy that the store holds too, jobs that one server runs, what entries are chosen by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_0002"
down_revision = "20261130_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("hits", sa.BigInteger(), nullable=False),
        sa.Column("heat", sa.Float(), nullable=False),
        sa.Column("last_used", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("project", "kind", "key"),
    )
    op.create_table(
        "meta",
        sa.Column("table_name", sa.String(32), nullable=False),
        sa.Column("row_id", sa.String(200), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("project", sa.String(63), nullable=True),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("updated", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("table_name", "row_id"),
    )
    op.create_index("ix_meta_project", "meta", ["table_name", "project"])
    op.create_table(
        "jobs",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.Column("finished", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    # NULL until the row is filled in from its document: servers of the version before go on inserting without them
    op.add_column("entries", sa.Column("label", sa.String(255), nullable=True))
    op.add_column("entries", sa.Column("compiler", sa.String(64), nullable=True))
    op.add_column("entries", sa.Column("compiler_version", sa.String(128), nullable=True))


def downgrade() -> None:
    for column in ("compiler_version", "compiler", "label"):
        op.drop_column("entries", column)
    for table in ("jobs", "meta", "usage"):
        op.drop_table(table)
