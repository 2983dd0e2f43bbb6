"""Tokens with several grants, a rate of their own, who made them, and when they were last used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261130_0005"
down_revision = "20261130_0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # NULL in rows of the version before: its servers go on inserting without them
    op.add_column("tokens", sa.Column("grants", sa.Text(), nullable=True))
    op.add_column("tokens", sa.Column("created_by", sa.String(255), nullable=True))
    op.add_column("tokens", sa.Column("rate", sa.Float(), nullable=True))
    op.add_column("tokens", sa.Column("last_used", sa.Float(), nullable=True))


def downgrade() -> None:
    for column in ("last_used", "rate", "created_by", "grants"):
        op.drop_column("tokens", column)
