"""Alembic's entry: runs the revisions on the connection that db.schema hands over, in its transaction."""

from alembic import context

from db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,  # SQLite's too, as db.connect begins its transactions itself
)
with context.begin_transaction():
    context.run_migrations()
