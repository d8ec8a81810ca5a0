"""The floor: the least that answers a POST durably, which is FastAPI and one INSERT with its own commit per request.

It causes no effect and promises nothing else; every ratio of the benchmark is a ratio to this program.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import asyncpg
import orjson
from fastapi import FastAPI, Header

TABLE = """
CREATE TABLE IF NOT EXISTS command (
  key text PRIMARY KEY, body jsonb NOT NULL, state text NOT NULL, at timestamptz NOT NULL DEFAULT now())
"""
INSERT = "INSERT INTO command (key, body, state) VALUES ($1, $2, 'SUCCESS') ON CONFLICT DO NOTHING"
CONNECTIONS = 16


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(
        os.environ["FLOOR_DATABASE_URL"], min_size=CONNECTIONS, max_size=CONNECTIONS
    ) as pool:
        await pool.execute(TABLE)
        app.state.pool = pool
        yield


app = FastAPI(lifespan=_lifespan)


@app.post("/commands")
async def command(body: dict[str, Any], idempotency_key: Annotated[str, Header()]) -> dict[str, str]:
    """One unit."""
    await app.state.pool.execute(INSERT, idempotency_key, orjson.dumps(body).decode())
    return {"key": idempotency_key, "state": "SUCCESS"}
