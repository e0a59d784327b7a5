"""Alembic's entry point. The connection and its transaction come from
`effbench.store.maintenance`."""

from alembic import context

from effbench.store.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
