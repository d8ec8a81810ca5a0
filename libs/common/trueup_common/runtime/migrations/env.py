"""Alembic's environment, shared by all services: each has its own schema and its own version table."""

from alembic import context

config = context.config
schema = config.attributes["schema"]

context.configure(
    connection=config.attributes["connection"],
    target_metadata=config.attributes.get("metadata"),
    version_table_schema=schema,
    include_schemas=True,
    include_name=lambda name, kind, parents: kind != "schema" or name == schema,
    compare_type=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
