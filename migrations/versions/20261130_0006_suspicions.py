"""Outputs that the scrub found wrong once, and why it stopped; whose a lease is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_0006"
down_revision = "20261130_0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # NULL in the row of the version before: its servers go on without them
    op.add_column("scrub", sa.Column("stopped", sa.Float(), nullable=True))
    op.add_column("scrub", sa.Column("reason", sa.Text(), nullable=True))
    op.add_column("leases", sa.Column("owner", sa.String(255), nullable=True))
    op.create_table(
        "suspicions",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("found", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("project", sa.String(63), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("sha256", "project", "kind", "key"),
    )


def downgrade() -> None:
    op.drop_table("suspicions")
    op.drop_column("leases", "owner")
    for column in ("reason", "stopped"):
        op.drop_column("scrub", column)
