"""The hops of a command and of a saga, and nothing else: the least that three services with stores of their own cost.

One process for each role, with the plane's bus, message headers, driver and batching: `edge` takes the request and
grants steps, `middle` knows what comes next, `hands` cause effects. Whoever takes a message commits before he speaks,
once for a batch: five commits and three stored messages from a POST to its answer, four commits and three messages more
for each step of a saga. There is no identity, policy, state machine, lease, history, view or timer here, and nobody
notices what was lost. It is a yardstick, not a peer. Run: `python -m bench.bare ROLE PORT`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from os import environ
from typing import Annotated, Any, Final

import asyncpg
import orjson
import uvicorn
import uvloop
from fastapi import FastAPI, Header
from fastapi.responses import Response

from bench.peers.effect import STEPS, Refused, making, post, unmaking
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.topology import COMMANDS, EVENTS, GRANTS, TASKS, Consumer
from trueup_common.runtime.bus import Bus, BusDelivery, BusPublisher, ConsumerSource
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.gathering import Gathering

ROLES: Final = ("edge", "middle", "hands")
TENANT: Final = "bench"
SESSIONS: Final = 5
BATCH: Final = 200
ANSWER: Final = f"trueup.answer.bare.{TENANT}"
COMMAND: Final = f"trueup.cmd.{TENANT}"
GRANT: Final = f"trueup.grant.request.{TENANT}"
TASK: Final = f"trueup.task.bench.execute.{TENANT}"
RECEIPT: Final = f"trueup.evt.adapter.bench.receipt.{TENANT}"
SUBJECTS: Final = {COMMANDS: COMMAND, GRANTS: GRANT, TASKS: TASK, EVENTS: RECEIPT}
GRANTER: Final = Consumer("edge-grants", GRANTS, "edge", (GRANT,))
STARTER: Final = Consumer("middle-commands", COMMANDS, "middle", (COMMAND,))
FOLDER: Final = Consumer("middle-receipts", EVENTS, "middle", (RECEIPT,))
DOER: Final = Consumer("hands-tasks", TASKS, "hands", (TASK,))
CONSUMERS: Final = (GRANTER, STARTER, FOLDER, DOER)

GROUND: Final = """
CREATE SCHEMA {role};
CREATE TABLE {role}.work (id text PRIMARY KEY, state text NOT NULL, body text NOT NULL, at timestamptz DEFAULT now());
CREATE TABLE {role}.inbox (id text PRIMARY KEY, at timestamptz DEFAULT now());
CREATE TABLE {role}.outbox
  (id text PRIMARY KEY, subject text NOT NULL, body text NOT NULL, at timestamptz DEFAULT now())
"""
SAVE: Final = """
WITH taken AS (INSERT INTO {role}.inbox (id) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING),
spoken AS (INSERT INTO {role}.outbox (id, subject, body) SELECT * FROM unnest($2::text[], $3::text[], $4::text[]))
INSERT INTO {role}.work (id, state, body) SELECT * FROM unnest($5::text[], $6::text[], $7::text[])
ON CONFLICT (id) DO UPDATE SET state = excluded.state, body = excluded.body
"""


@dataclass(frozen=True)
class Row:
    """What one message or request leaves: the state of its work, and what is said of it."""

    id: str
    state: str
    body: dict[str, Any]
    taken: str = ""
    """The message that it was, where it was one."""
    subject: str = ""
    core: bool = False


class Hop:
    """One service's store and mouth: rows that come together are committed together, and then spoken of."""

    def __init__(self, role: str, pool: asyncpg.Pool, bus: Bus) -> None:
        self._role, self._pool, self._bus = role, pool, bus
        self._sql = SAVE.format(role=role)
        self._publisher = BusPublisher(bus)
        self._waiting: list[tuple[Row, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._gathering = Gathering()

    @classmethod
    async def open(cls, role: str) -> "Hop":
        """Connect to both servers."""
        pool = await asyncpg.create_pool(environ["BARE_DATABASE_URL"], min_size=SESSIONS, max_size=SESSIONS)
        return cls(role, pool, await Bus.connect(environ["BARE_NATS_URL"], service=role, name=role))

    @property
    def bus(self) -> Bus:
        """The connection to the broker."""
        return self._bus

    async def take(self, row: Row) -> None:
        """Commit and speak, together with whatever else waits by then."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        await done

    async def _write(self) -> None:
        await self._gathering.wait()
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            self._gathering.took(len(batch))
            await self.keep([row for row, _ in batch])
            for _, done in batch:
                done.set_result(None)
        self._writer = None

    async def keep(self, rows: Sequence[Row]) -> None:
        """One commit for all, and then what is said of each."""
        said = [(row, new_id("msg"), orjson.dumps(row.body)) for row in rows]
        loud = [each for each in said if each[0].subject and not each[0].core]
        await self._pool.execute(
            self._sql,
            [row.taken for row in rows if row.taken],
            [message for _, message, _ in loud],
            [row.subject for row, _, _ in loud],
            [data.decode() for _, _, data in loud],
            [row.id for row in rows],
            [row.state for row in rows],
            [data.decode() for _, _, data in said],
        )
        now = real_now()
        await self._publisher.publish(
            [
                Outgoing(
                    Message(message, "bench.hop.v1", row.subject, TENANT, self._role, now, data),
                    durable=not row.core,
                    core=row.core,
                )
                for row, message, data in said
                if row.subject
            ]
        )

    async def hear(self, consumer: Consumer, react: Callable[[Sequence[BusDelivery]], Awaitable[None]]) -> None:
        """Batches of one consumer, one after the other, for ever."""
        source = ConsumerSource(self._bus, consumer)
        await source.start()
        while True:
            if batch := await source.fetch(BATCH):
                await react(batch)


def _body(delivery: BusDelivery) -> dict[str, Any]:
    return dict(orjson.loads(delivery.message.data))


async def _acks(batch: Sequence[BusDelivery]) -> None:
    for delivery in batch:
        await delivery.ack()


def edge() -> FastAPI:
    """Accepts, grants steps, and answers."""
    hops: list[Hop] = []
    answers: dict[str, asyncio.Future[str]] = {}

    async def grant(batch: Sequence[BusDelivery]) -> None:
        rows = []
        for delivery in batch:
            task = _body(delivery)
            rows.append(Row(task["effect"]["key"], "GRANTED", task, delivery.message.id, TASK))
        await hops[0].keep(rows)
        await _acks(batch)

    async def answered(raw: Any) -> None:
        ended = orjson.loads(raw.data)
        if (answer := answers.pop(ended["id"], None)) is not None:
            answer.set_result(ended["state"])

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        hops.append(await Hop.open("edge"))
        await hops[0].bus.listen(ANSWER, answered)
        granting = asyncio.create_task(hops[0].hear(GRANTER, grant))
        yield
        granting.cancel()

    app = FastAPI(lifespan=lifespan)

    async def run(key: str, body: dict[str, Any]) -> Response:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answers[key] = answer
        await hops[0].take(Row(key, "RECEIVED", {"id": key, **body}, subject=COMMAND))
        return Response(orjson.dumps({"key": key, "state": await answer}), media_type="application/json")

    @app.post("/commands")
    async def command(body: dict[str, Any], idempotency_key: Annotated[str, Header()]) -> Response:
        return await run(idempotency_key, {"effect": {"key": body["payload"]["key"]}})

    @app.post("/sagas")
    async def saga(body: dict[str, Any], idempotency_key: Annotated[str, Header()]) -> Response:
        return await run(idempotency_key, {"unit": body["unit"], "refuse": body["refuse"], "step": 1})

    return app


def next_of(case: dict[str, Any], receipt: dict[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """State and body of a case after its start or a receipt; `effect` is the next one, and missing at the end."""
    if "step" not in case:
        return ("SUCCESS", {"id": case["id"], "state": "SUCCESS"}) if receipt else ("RUNNING", case)
    unit, step = case["unit"], case["step"]
    undoing = case.get("undoing", False)
    if receipt is not None:
        undoing = undoing or not receipt["made"]
        step += -1 if undoing else 1
    if not 1 <= step <= STEPS:
        state = "COMPENSATED" if undoing else "CLOSED"
        return state, {"id": case["id"], "state": state}
    effect = unmaking(unit, step) if undoing else making(unit, step, case["refuse"])
    return "RUNNING", {**case, "step": step, "undoing": undoing, "effect": effect}


async def middle() -> None:
    """Knows what comes next."""
    hop = await Hop.open("middle")

    def row(case: dict[str, Any], receipt: dict[str, Any] | None, taken: str) -> Row:
        state, body = next_of(case, receipt)
        if "effect" not in body:
            return Row(body["id"], state, body, taken, ANSWER, core=True)
        return Row(body["id"], state, body, taken, GRANT if "step" in body else TASK)

    async def start(batch: Sequence[BusDelivery]) -> None:
        await hop.keep([row(_body(delivery), None, delivery.message.id) for delivery in batch])
        await _acks(batch)

    async def fold(batch: Sequence[BusDelivery]) -> None:
        receipts = [(_body(delivery), delivery.message.id) for delivery in batch]
        await hop.keep([row(receipt["case"], receipt, taken) for receipt, taken in receipts])
        await _acks(batch)

    await asyncio.gather(hop.hear(STARTER, start), hop.hear(FOLDER, fold))


async def hands() -> None:
    """Cause effects: what is about to be sent is committed first, and acked then."""
    hop = await Hop.open("hands")
    running: set[asyncio.Task[None]] = set()

    async def cause(case: dict[str, Any]) -> None:
        effect = case["effect"]
        try:
            outcome = {"made": True, "ref": await post(effect)}
        except Refused as refusal:
            outcome = {"made": False, "why": str(refusal)}
        await hop.take(Row(effect["key"], "CONFIRMED", {"case": case, **outcome}, subject=RECEIPT))

    async def send(batch: Sequence[BusDelivery]) -> None:
        cases = [(_body(delivery), delivery.message.id) for delivery in batch]
        await hop.keep([Row(case["effect"]["key"], "SENT", case, taken) for case, taken in cases])
        await _acks(batch)
        for case, _ in cases:
            task = asyncio.create_task(cause(case))
            running.add(task)
            task.add_done_callback(running.discard)

    await hop.hear(DOER, send)


def main(role: str, port: int) -> None:
    """Run one role until a signal ends it."""
    if role == "edge":
        uvicorn.run(
            edge(),
            host="127.0.0.1",
            port=port,
            loop="uvloop",
            http="httptools",
            access_log=False,
            log_level="warning",
            timeout_keep_alive=120,
        )
    else:
        uvloop.run({"middle": middle, "hands": hands}[role]())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
