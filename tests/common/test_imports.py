"""What a process imports is what it uses: each library costs every start, and memory as long as the process lives."""

import subprocess
import sys

import pytest
from tests.patience import PATIENCE_SECONDS


@pytest.mark.parametrize("module", ["trueup_orchestrator.main", "trueup_reconciler.main"])
def test_who_calls_nobody_over_http_does_not_import_a_client(module: str) -> None:
    """The bus client would import aiohttp for WebSockets; who has a use for it still gets it."""
    code = f"import sys, {module}; assert 'aiohttp' not in sys.modules; import aiohttp; aiohttp.ClientSession"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("service", ["gateway", "orchestrator", "adapters", "reconciler", "repair_planner"])
def test_a_service_at_work_does_not_load_what_makes_tables(service: str) -> None:
    """SQLAlchemy is a quarter of what a small service weighs, and only migrations use it.

    Requirements: B5
    """
    code = f"import sys, trueup_{service}.main; assert not {{'sqlalchemy', 'sqlmodel', 'alembic'}} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)
