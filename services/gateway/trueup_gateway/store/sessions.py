"""SQL of console sessions: who is logged in, whichever replica serves them. Some per person, and only for a time."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from trueup_common.runtime.mail import SqlTransaction
from trueup_gateway.store.reads import Reads

OF_ONE_MAX: Final = 10
"""Sessions of one person at a time; the one that was opened first gives way."""
FORGOTTEN_AT_ONCE: Final = 100

_OPEN: Final = """
INSERT INTO gateway.console_session (session_id, tenant, subject, opened_at, expires_at)
VALUES ($1, $2, $3, clock_timestamp(), $4)
"""
_CROWDED: Final = """
DELETE FROM gateway.console_session WHERE session_id IN (
  SELECT session_id FROM gateway.console_session WHERE tenant = $1 AND subject = $2
  ORDER BY opened_at DESC, session_id OFFSET $3)
"""
_FORGET: Final = """
DELETE FROM gateway.console_session WHERE session_id IN (
  SELECT session_id FROM gateway.console_session WHERE expires_at < clock_timestamp() ORDER BY expires_at LIMIT $1)
"""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One person at one browser, until a moment of real time."""

    session_id: str
    tenant: str
    subject: str
    expires_at: datetime


class SessionSql(SqlTransaction):
    """Coming in and going out."""

    async def open_session(self, row: SessionRow) -> None:
        """Let somebody in; what is over is forgotten, and of too many sessions of one person the oldest ones end."""
        await self.connection.execute(_OPEN, row.session_id, row.tenant, row.subject, row.expires_at)
        await self.connection.execute(_CROWDED, row.tenant, row.subject, OF_ONE_MAX)
        await self.connection.execute(_FORGET, FORGOTTEN_AT_ONCE)

    async def end_session(self, session_id: str) -> None:
        """Nobody is let in by this session any more, at any replica."""
        await self.connection.execute("DELETE FROM gateway.console_session WHERE session_id = $1", session_id)


class SessionReads(Reads):
    """Whether somebody is logged in."""

    async def session_is_open(self, session_id: str) -> bool:
        """True until it was ended, here or anywhere."""
        async with self._connection() as connection:
            statement = "SELECT true FROM gateway.console_session WHERE session_id = $1"
            return bool(await connection.fetchval(statement, session_id))
