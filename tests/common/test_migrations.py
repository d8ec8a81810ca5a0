"""Migrations and tables in code never part: the newest revisions give exactly the tables that the stores speak to."""

from tests.servers import Database

from trueup_devkit.revise import differences


async def test_the_newest_revisions_are_the_tables_in_code(fresh_database: Database) -> None:
    """Every service has revisions, and they differ from its tables in nothing."""
    found = await differences(fresh_database.admin_url)
    assert set(found) == {"adapters", "gateway", "orchestrator", "reconciler", "repair_planner"}
    assert {schema: items for schema, items in found.items() if items} == {}
