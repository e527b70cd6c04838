"""Writers and members of groups that run in threads of this process, at a steady rate: a cluster to look at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from headrace import Consumer, Producer, ShareConsumer

_ROUND = 0.05  # seconds


class _Paced:
    """Calls `self._work(seconds)` until it is closed. The error of a failed thread is raised by `close()`."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join(60)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001  # raised by close()
            self._error = error

    def _loop(self) -> None:
        raise NotImplementedError


class PacedWriter(_Paced):
    """Writes `rate` records per second to a topic, over all its partitions."""

    def __init__(self, servers: str, topic: str, rate: float, value: Callable[[int], bytes]) -> None:
        super().__init__()
        self._servers, self._topic, self._rate, self._value = servers, topic, rate, value

    def _loop(self) -> None:
        with Producer(bootstrap_servers=self._servers) as producer:
            begun, written = time.monotonic(), 0
            while not self._over.wait(_ROUND):
                due = int((time.monotonic() - begun) * self._rate)
                for number in range(written, due):
                    producer.send(self._topic, self._value(number), key=b"%d" % (number % 97))
                written = due


class PacedConsumer(_Paced):
    """A member that reads at most `rate` records per second."""

    def __init__(self, servers: str, group: str, topic: str, rate: float, **settings: Any) -> None:
        super().__init__()
        self.rate = rate
        self._topic = topic
        self._settings = {
            "bootstrap_servers": servers,
            "group_id": group,
            "client_id": group,
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 500,
            **settings,
        }

    def _loop(self) -> None:
        with Consumer(**self._settings) as consumer:
            consumer.subscribe([self._topic])
            while not self._over.is_set():
                records = consumer.poll(0.2, max_records=max(1, round(self.rate / 5)))
                self._over.wait(len(records) / self.rate)


class PacedShareConsumer(_Paced):
    """A member of a share group. It holds the records of a poll for a while, then accepts them."""

    def __init__(self, servers: str, group: str, topic: str, rate: float, **settings: Any) -> None:
        super().__init__()
        self._rate = rate
        self._topic = topic
        self._settings = {"bootstrap_servers": servers, "group_id": group, "client_id": group, **settings}

    def _loop(self) -> None:
        with ShareConsumer(**self._settings) as consumer:
            consumer.subscribe([self._topic])
            while not self._over.is_set():
                records = consumer.poll(0.2, max_records=50)
                self._over.wait(len(records) / self._rate)
