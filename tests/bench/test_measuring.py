"""The benchmark's own instruments: a figure is worth what the thing that counts it is worth."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from bench.budget import kind_of
from bench.load import KEY, Load, Order, Request, percentile
from bench.measure import Measurement
from bench.processes import cpu_seconds, pss_mb
from bench.report import table
from bench.stacks import Faults, SagaPlane, UndoneSagaPlane
from bench.stub import Effects, StubProtocol

from tests.patience import PATIENCE_SECONDS


@pytest_asyncio.fixture
async def stub() -> AsyncIterator[tuple[Effects, int]]:
    """A stub in this process."""
    effects = Effects()
    server = await asyncio.get_running_loop().create_server(lambda: StubProtocol(effects), "127.0.0.1", 0)
    yield effects, server.sockets[0].getsockname()[1]
    server.close()


async def _ask(port: int, content: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(65536), PATIENCE_SECONDS)
    writer.close()
    return answer


def _post(headers: str, body: str) -> bytes:
    return f"POST /effect HTTP/1.1\r\n{headers}content-length: {len(body)}\r\n\r\n{body}".encode()


async def test_the_stub_counts_every_effect_and_never_deduplicates(stub: tuple[Effects, int]) -> None:
    """The ground truth shows an effect that was sent twice, however its key was given and however it was split."""
    effects, port = stub
    once = _post('Idempotency-Key: "a"\r\n', "{}")
    again = _post("", '{"key": "a"}')
    assert b"201 Created" in await _ask(port, once)
    await _ask(port, again + again)
    await _ask(port, _post("", '{"key": "b"}'))
    assert effects.totals().items() >= {"effects": 4, "distinct": 2, "duplicated": 2}.items()
    assert b'"count":3' in await _ask(port, b"GET /effect/a HTTP/1.1\r\n\r\n")
    assert b"404" in (await _ask(port, b"GET /effect/never HTTP/1.1\r\n\r\n")).split(b"\r\n")[0]
    assert b"422" in (await _ask(port, _post("", "nonsense"))).split(b"\r\n")[0]


async def test_the_stub_knows_the_order_of_a_saga(stub: tuple[Effects, int]) -> None:
    """Steps stand in order until they are undone in reverse; a refused one leaves nothing."""
    effects, port = stub
    steps = [
        '{"key": "a", "unit": "u", "step": 1}',
        '{"key": "b", "unit": "u", "step": 2}',
        '{"key": "c", "unit": "u", "step": 3, "refuse": true}',
        '{"key": "b-", "unit": "u", "step": 2, "undoes": "b"}',
        '{"key": "a-", "unit": "u", "step": 1, "undoes": "a"}',
    ]
    answers = [(await _ask(port, _post("", step))).split(b"\r\n")[0] for step in steps]
    assert [b"201" in answer for answer in answers] == [True, True, False, True, True]
    told = effects.totals()
    assert (told["distinct"], told["standing"], told["undone"]) == (4, 0, 2)
    assert (told["refused"], told["disordered"]) == (1, 0)
    for step in ('{"key": "x", "unit": "v", "step": 2}', '{"key": "y", "unit": "v", "step": 1, "undoes": "never"}'):
        await _ask(port, _post("", step))
    assert (effects.totals()["standing"], effects.totals()["disordered"]) == (1, 2)


def test_a_saga_is_held_to_the_ground_truth() -> None:
    """What is left standing, lost, refused too often or out of order is told."""
    well = SagaPlane("http://127.0.0.1:9", units_max=1)
    undone = UndoneSagaPlane("http://127.0.0.1:9", units_max=1)
    of_well = {"distinct": 10, "duplicated": 0, "standing": 10, "undone": 0, "refused": 0, "disordered": 0}
    of_undone = {"distinct": 16, "duplicated": 0, "standing": 0, "undone": 8, "refused": 2, "disordered": 0}
    assert well.faults(of_well, 2) == undone.faults(of_undone, 2) == Faults(0, 0)
    assert well.faults(of_well | {"distinct": 9, "standing": 9}, 2) == Faults(0, 1, "9 standing instead of 10")
    assert undone.faults(of_undone | {"standing": 1}, 2).otherwise == "1 standing instead of 0"
    assert well.faults(of_well | {"disordered": 1}, 2).otherwise == "1 disordered instead of 0"
    well.stop()
    undone.stop()


async def test_the_client_takes_only_success_for_success(stub: tuple[Effects, int]) -> None:
    """An answer without the terminal state SUCCESS is a bad unit and gives no latency; every unit has its own key."""
    effects, port = stub
    request = Request("127.0.0.1", port, "/effect", {"idempotency-key": KEY}, "{}")
    result = await Load(Order(request, units=20, seconds=PATIENCE_SECONDS, in_flight=4)).run()
    assert (result.ok, result.bad, result.p50_ms) == (0, 20, None)
    assert result.bad_samples[0].startswith("201 ")
    assert effects.totals().items() >= {"effects": 20, "distinct": 20, "duplicated": 0}.items()


async def test_the_open_loop_charges_a_stall_to_everybody_who_was_due() -> None:
    """A server that answers nothing for a while makes all requests of that while late, not just those in flight."""
    stalled = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            await stalled.wait()
            writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{"state":"SUCCESS"}')

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    request = Request("127.0.0.1", server.sockets[0].getsockname()[1], "/", {}, "{}")
    asyncio.get_running_loop().call_later(0.5, stalled.set)
    result = await Load(Order(request, units=40, seconds=PATIENCE_SECONDS, rate_per_second=200)).run()
    server.close()
    assert (result.ok, result.bad) == (40, 0)
    assert result.p50_ms is not None and result.p50_ms > 150


def test_percentiles_are_of_the_ordered_values() -> None:
    """In milliseconds; none without values."""
    assert percentile([], 0.5) is None
    assert percentile([0.001 * n for n in range(1, 101)], 0.5) == pytest.approx(51)
    assert percentile([0.001 * n for n in range(1, 101)], 0.99) == pytest.approx(100)


def test_cpu_and_memory_of_a_tree_include_its_children() -> None:
    """A child that burns counts for the role that started it; a supervisor counts alone."""
    burn = "sum(i * i for i in range(6_000_000))"
    program = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{burn}']); print('done', flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "done\n"
        whole = cpu_seconds({"role": process.pid})["role"]
        alone = cpu_seconds({"supervisor": process.pid})["supervisor"]
        assert whole > alone
        sizes = pss_mb({"role": process.pid})
        assert sizes is None or sizes["role"] > 1
    finally:
        process.communicate("\n", timeout=PATIENCE_SECONDS)


def test_what_was_not_measured_is_absent() -> None:
    """The last line holds measured figures only, and the table shows a dash and the reason."""
    measured = [Measurement("floor", cpu_s_per_1000=0.5), Measurement("trueup", cpu_s_per_1000=1.5, problems=["why"])]
    assert measured[1].figures() == {"cpu_s_per_1000": 1.5}
    text = table(measured)
    assert "1.50 (x3.00)" in text
    assert "PROBLEM trueup: why" in text


@pytest.mark.parametrize(
    ("subject", "kind"),
    [
        ("trueup.cmd.acme", "trueup.cmd"),
        ("trueup.task.bench.execute.acme", "trueup.task.execute"),
        ("trueup.evt.adapter.bench.receipt.acme", "trueup.evt.adapter.bench.receipt"),
        ("trueup.answer.gateway-2", "trueup.answer"),
    ],
)
def test_subjects_are_counted_by_kind(subject: str, kind: str) -> None:
    """Tenants and instances do not split a kind."""
    assert kind_of(subject) == kind
