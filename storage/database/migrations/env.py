"""Run migrations on the connection that `storage.database.engine.migrate` passes."""

from alembic import context

from storage.database.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
