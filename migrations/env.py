"""Alembic's entry: runs on the connection that `cache_server.database.migrate` hands over."""

from alembic import context

from cache_server.database.models import Base

connection = context.config.attributes["connection"]

if connection.dialect.name == "postgresql":
    # a migration must never hold up running servers: better to fail and be run again
    connection.exec_driver_sql("SET LOCAL lock_timeout = '4s'")
    connection.exec_driver_sql("SET LOCAL statement_timeout = '60s'")

context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
