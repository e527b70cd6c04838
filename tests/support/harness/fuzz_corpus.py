"""The fuzzing corpus: responses of a real broker, as received from the wire.

    python -m support.harness.fuzz_corpus     (in tests/) records them again: up to three per request and version

They are in tests/data/fuzz/answers, without their length, named by request, version and number. Add an input that once
caused a bug there, under a name that describes it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from headrace._protocol.messages import APIS, Api

ANSWERS = Path(__file__).parents[2] / "data" / "fuzz" / "answers"
_EACH = 3
_LONGEST = 3000


def answers() -> list[tuple[Api, int, bytes]]:
    """All recorded responses."""
    found = []
    names = {api.name: api for api in APIS}
    for path in sorted(ANSWERS.glob("*.bin")):
        name, version, _ = path.stem.split("-", 2)
        found.append((names[name], int(version), path.read_bytes()))
    return found


def record() -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    from headrace import Consumer, LocalBroker, ShareConsumer
    from headrace._net import calls

    seen: dict[tuple[str, int], set[bytes]] = {}
    lock = threading.Lock()
    decode = calls.decode_response

    def recording(api: Api, version: int, frame: memoryview) -> Any:
        with lock:
            found = seen.setdefault((api.name, version), set())
            if len(found) < _EACH and len(frame) <= _LONGEST:
                found.add(bytes(frame[4:]))  # the correlation id differs each time
        return decode(api, version, frame)

    calls.decode_response = recording
    with LocalBroker(secure=True) as broker:
        config = broker.client_config
        admin = AdminClient(config)
        admin.create_topics([NewTopic("corpus", 2, 1)])["corpus"].result(30)
        producer = Producer(config)
        for number in range(20):
            producer.produce("corpus", b"value %d" % number, b"key", headers=[("a", b"1")])
        producer.flush(30)
        for protocol in ("classic", "consumer"):
            settings = {"group.id": protocol, "group.protocol": protocol, "auto.offset.reset": "earliest"}
            if protocol == "classic":
                settings["heartbeat.interval.ms"] = "50"
            with Consumer(config | settings) as consumer:
                consumer.subscribe(["corpus"])
                left = 20
                while left > 0:
                    left -= len(consumer.poll(1))
                consumer.commit()
                consumer.offsets_for_times({("corpus", 0): 0})
                consumer.committed([("corpus", 0)])
                consumer.poll(0.5)
        with ShareConsumer(config, group_id="shares") as sharing:
            sharing.subscribe(["corpus"])
            while not sharing.poll(1):  # a share group starts at the end of the log
                producer.produce("corpus", b"shared")
                producer.flush(30)
            sharing.commit()
    ANSWERS.mkdir(parents=True, exist_ok=True)
    for (name, version), frames in seen.items():
        for number, frame in enumerate(sorted(frames)):
            (ANSWERS / f"{name}-{version}-{number}.bin").write_bytes(b"\0\0\0\x01" + frame)


if __name__ == "__main__":
    record()
