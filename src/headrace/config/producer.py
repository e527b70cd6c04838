"""The settings of a producer: Kafka's names and Java's defaults, checked once.

Some settings need others. A contradiction between given settings raises an error. Two defaults give way instead:

| setting                               | needs                                       | if not given |
|---------------------------------------|---------------------------------------------|--------------|
| enable.idempotence                    | acks=all, retries above 0                   | false        |
| max.in.flight.requests.per.connection | at most 5 with enable.idempotence           |              |
| transactional.id                      | enable.idempotence                          |              |
| transaction.two.phase.commit.enable   | transactional.id, no transaction.timeout.ms |              |
| delivery.timeout.ms                   | at least linger.ms + request.timeout.ms     | their sum    |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from .._parsers import one_of, parse_flag, parse_id, parse_text, setting, whole_number
from ..errors import ConfigError
from .client import ClientConfig
from .consumer import ConsumerConfig
from .other_clients import PRODUCER_HINTS
from .share import OWN

_LARGEST = 2**31 - 1
_MAX_IN_FLIGHT = 5

# -- parsers of single settings; the common ones are in `_parsers.py` ------------------------------------------------

ACKS_ALL = -1


def _acks(value: Any) -> int:
    text = value.strip().lower() if isinstance(value, str) else str(value)
    found = {"all": ACKS_ALL, "-1": ACKS_ALL, "0": 0, "1": 1}.get(text)
    if found is None:
        raise ValueError("must be all (or -1), 1 or 0")
    return found


def _gzip_level(value: Any) -> int:
    number: int = whole_number(-1, 9)(value)
    if number == 0:
        raise ValueError("must be between 1 and 9, or -1 for zlib's default")
    return number


PARTITIONERS = ("default", "murmur2_random", "consistent_random")

# librdkafka's other partitioners. The ones without "random" send all records that have no key to the same partition.
_UNSUPPORTED_PARTITIONERS = {
    "consistent": "use consistent_random, which maps keys to the same partitions",
    "murmur2": "use murmur2_random, which maps keys to the same partitions",
    "random": "use partitioner.ignore.keys=true",
    "fnv1a": "choose the partition in your code",
    "fnv1a_random": "choose the partition in your code",
}


def _partitioner(value: Any) -> str:
    text = parse_text(value).lower()
    if text in _UNSUPPORTED_PARTITIONERS:
        raise ValueError(f"this partitioner of librdkafka is not supported: {_UNSUPPORTED_PARTITIONERS[text]}")
    name: str = one_of(*PARTITIONERS)(text)
    return name


# -- the settings ---------------------------------------------------------------------------------------------

_ms = whole_number(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """The checked settings of a producer."""

    role: ClassVar[str] = "producer"
    unsupported: ClassVar[Mapping[str, str]] = {
        "key_serializer": "give keys as bytes or str",
        "value_serializer": "give values as bytes or str",
        "partitioner_class": "headrace cannot run Java classes: use partitioner, or choose the partition in your code",
        "interceptor_classes": "there are no interceptors: wrap the producer instead",
        # librdkafka's names
        "queue_buffering_max_ms": "use linger.ms",
        "queue_buffering_max_kbytes": "use buffer.memory, which is in bytes",
        "queue_buffering_max_messages": "buffered records are limited in bytes: use buffer.memory",
        "message_timeout_ms": "use delivery.timeout.ms",
        "message_send_max_retries": "use retries",
        "message_max_bytes": "use max.request.size",
        "max_in_flight": "use max.in.flight.requests.per.connection",
        "request_required_acks": "use acks",
        "compression_codec": "use compression.type",
        "compression_level": "use compression.gzip.level, compression.lz4.level or compression.zstd.level",
        "batch_num_messages": "batches are limited in bytes: use batch.size",
        **PRODUCER_HINTS,
        **ClientConfig.unsupported,
    }
    other_roles: ClassVar[Mapping[str, str]] = {
        **{field.name: "consumer" for field in dataclasses.fields(ConsumerConfig)},
        **dict.fromkeys(OWN, "share consumer"),
    }

    acks: int = setting(
        _acks,
        ACKS_ALL,
        "Which replicas have to store a record before the broker confirms it: all that are in sync (all or -1), only "
        "the leader (1), or none (0). With 0, the producer learns neither offsets nor errors.",
    )
    enable_idempotence: bool = setting(
        parse_flag,
        True,
        "Retries neither duplicate nor reorder records. Needs acks=all and retries above 0: without these, the default "
        "is false.",
    )
    retries: int = setting(
        whole_number(0, _LARGEST),
        _LARGEST,
        "How often a batch is retried after a retriable error. delivery.timeout.ms limits the retries, too.",
    )
    delivery_timeout_ms: int = setting(
        _ms,
        120_000,
        "How long the delivery of a batch may take, from its first record to the broker's confirmation, including "
        "linger.ms and retries. It must be at least linger.ms + request.timeout.ms; the default is raised to that.",
    )
    max_in_flight_requests_per_connection: int = setting(
        whole_number(1),
        _MAX_IN_FLIGHT,
        "How many requests may wait for the response of one broker. At most 5 with enable.idempotence. Without it, "
        "retries may reorder records unless this is 1.",
    )

    linger_ms: int = setting(_ms, 5, "How long a batch waits for more records before it is sent, if it is not full.")
    batch_size: int = setting(
        whole_number(0),
        16_384,
        "The size of a full batch in bytes. A larger record gets a batch of its own. 0 disables batches.",
    )
    buffer_memory: int = setting(
        whole_number(1, 2**63 - 1),
        32 * 2**20,
        "The maximum size in bytes of all records that wait for their delivery.",
    )
    max_block_ms: int = setting(
        _ms,
        60_000,
        "How long a call waits for metadata of the topic, for space in buffer.memory, or for a step of a transaction.",
    )
    max_request_size: int = setting(
        whole_number(1), 2**20, "The maximum size in bytes of one record before compression, and of one request."
    )

    compression_type: str = setting(
        one_of("none", "gzip", "snappy", "lz4", "zstd"),
        "none",
        "How batches are compressed: none, gzip, snappy, lz4 or zstd.",
    )
    compression_gzip_level: int = setting(
        _gzip_level, -1, "With compression.type=gzip: 1 (fast) to 9 (small). -1 is zlib's default."
    )
    compression_lz4_level: int = setting(
        whole_number(1, 17),
        9,
        "With compression.type=lz4: 9 is the fast compressor, as in Java. The other levels are the high compressor, 1 "
        "(fast) to 17 (small); levels above 12 compress like 12.",
    )
    compression_zstd_level: int = setting(
        whole_number(-131_072, 22), 3, "With compression.type=zstd: -131072 (fast) to 22 (small)."
    )

    partitioner: str = setting(
        _partitioner,
        "default",
        "How the key of a record selects its partition: with murmur2, like Java's producer (default, or "
        "murmur2_random), or with CRC-32, like librdkafka (consistent_random). Records without a key go to a random "
        "partition, which changes after batch.size bytes.",
    )
    partitioner_ignore_keys: bool = setting(
        parse_flag, False, "Keys do not select partitions: all records are treated like records without a key."
    )
    partitioner_adaptive_partitioning_enable: bool = setting(
        parse_flag, True, "Records without a key go less often to partitions with many waiting batches."
    )
    partitioner_availability_timeout_ms: int = setting(
        _ms,
        0,
        "With adaptive partitioning: records without a key avoid the partitions of a broker that accepts no batches "
        "for this long. 0 disables this.",
    )

    transactional_id: str | None = setting(
        parse_id,
        None,
        "Enables transactions. A producer fences older producers with the same id. Needs enable.idempotence.",
    )
    transaction_timeout_ms: int = setting(
        whole_number(1),
        60_000,
        "The coordinator aborts a transaction that is open for longer than this, counted from its first record. The "
        "broker's limit is transaction.max.timeout.ms.",
    )
    transaction_two_phase_commit_enable: bool = setting(
        parse_flag,
        False,
        "An external coordinator decides about transactions, which never time out (KIP-939). Excludes "
        "transaction.timeout.ms.",
    )

    metadata_max_idle_ms: int = setting(
        whole_number(5_000), 300_000, "Metadata of a topic is dropped when no record was sent to it for this long."
    )

    @property
    def compression_level(self) -> int | None:
        """The level of the codec, or None for its default."""
        levels = {
            "gzip": None if self.compression_gzip_level < 0 else self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    @property
    def is_transactional(self) -> bool:
        return self.transactional_id is not None

    @classmethod
    def parse(cls, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> ProducerConfig:
        """Parse settings from a mapping with dotted names, from keywords with underscores, or from both.

        Raises TypeError if `config` is not a mapping. Raises ConfigError if a setting is unknown, invalid or given
        twice, if settings contradict each other, or if certificates or keys cannot be read.
        """
        values = cls._parse_values(config, keywords)
        _settle_idempotence(values)
        _check_transactions(values)
        _settle_delivery_timeout(values)
        return cls._create(values)


def _value(values: Mapping[str, Any], name: str) -> Any:
    return values.get(name, getattr(ProducerConfig, name))


def _settle_idempotence(values: dict[str, Any]) -> None:
    is_wanted = values.get("enable_idempotence")
    is_transactional = values.get("transactional_id") is not None
    if is_transactional and is_wanted is False:
        raise ConfigError("transactional.id needs enable.idempotence=true")
    missing = None
    if _value(values, "acks") != ACKS_ALL:
        missing = "acks=all: otherwise, records that the broker has confirmed can be lost"
    elif _value(values, "retries") == 0:
        missing = "retries above 0"
    if missing is not None:
        if is_transactional or is_wanted:
            raise ConfigError(
                f"{'transactional.id' if is_transactional else 'enable.idempotence=true'} needs {missing}"
            )
        values["enable_idempotence"] = False
    in_flight = _value(values, "max_in_flight_requests_per_connection")
    if _value(values, "enable_idempotence") and in_flight > _MAX_IN_FLIGHT:
        raise ConfigError(
            f"max.in.flight.requests.per.connection={in_flight}: must be at most {_MAX_IN_FLIGHT} with "
            f"enable.idempotence=true, because brokers recognize duplicates only of a producer's last {_MAX_IN_FLIGHT} "
            f"batches"
        )


def _check_transactions(values: Mapping[str, Any]) -> None:
    if values.get("transaction_two_phase_commit_enable"):
        if values.get("transactional_id") is None:
            raise ConfigError("transaction.two.phase.commit.enable=true needs a transactional.id")
        if "transaction_timeout_ms" in values:
            raise ConfigError(
                "transaction.timeout.ms cannot be set with transaction.two.phase.commit.enable=true: such transactions "
                "never time out"
            )


def _settle_delivery_timeout(values: dict[str, Any]) -> None:
    least = min(_value(values, "linger_ms") + _value(values, "request_timeout_ms"), _LARGEST)
    if _value(values, "delivery_timeout_ms") >= least:
        return
    if "delivery_timeout_ms" in values:
        raise ConfigError(
            f"delivery.timeout.ms={values['delivery_timeout_ms']}: must be at least linger.ms + request.timeout.ms, "
            f"which is {least}"
        )
    values["delivery_timeout_ms"] = least
