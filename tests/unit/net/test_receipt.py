"""Small responses are passed to their caller on the thread that receives them, before the loop knows of them."""

from __future__ import annotations

import threading

import pytest

from headrace._net.calls import Reply
from headrace._protocol.messages import FETCH
from headrace.errors import ProtocolError
from support.brokers.fake_broker import FakeBroker, frame, run
from support.brokers.fake_connections import NO_FETCH, connect, failure, records, records_in
from support.brokers.fake_connections import received as received  # an autouse fixture


class Receipts:
    def __init__(self) -> None:
        self.seen: list[tuple[Reply, str]] = []

    def __call__(self, reply: Reply) -> None:
        self.seen.append((reply, threading.current_thread().name))


@pytest.mark.parametrize(("size", "is_passed"), [(10, True), (60_000, True), (70_000, False)])
def test_a_small_response_is_passed_on_where_it_is_received(
    request: pytest.FixtureRequest, size: int, is_passed: bool
) -> None:
    on_a_thread = "on a thread" in request.node.name

    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            for _ in range(2):
                receipts = Receipts()
                call = connection.start(FETCH, NO_FETCH, on_receipt=receipts)
                await link.send(frame((await link.receive()).correlation_id, records(b"x" * size)))
                reply = await call
                assert records_in(reply) == b"x" * size
                if on_a_thread and is_passed:
                    ((passed, thread),) = receipts.seen
                    assert passed is reply, "it is parsed once"
                    assert thread.startswith("headrace-receive")
                else:
                    assert receipts.seen == []
            connection.close()

    run(main())


@pytest.mark.parametrize("damage", ["another id", "cut off", "too short"])
def test_a_response_that_cannot_be_read_is_not_passed_on(damage: str) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            connection, link = await connect(broker)
            receipts = Receipts()
            call = connection.start(FETCH, NO_FETCH, on_receipt=receipts)
            number = (await link.receive()).correlation_id
            whole = frame(number + 1 if damage == "another id" else number, records(b"x"))[4:]
            part = {"another id": whole, "cut off": whole[:-3], "too short": whole[:2]}[damage]
            await link.send(len(part).to_bytes(4, "big") + part)
            assert isinstance(await failure(call), ProtocolError)
            assert receipts.seen == []

    run(main())
