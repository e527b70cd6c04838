"""Settings of a producer: their defaults and bounds, and how they depend on each other."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from headrace._arguments import short_repr
from headrace.config.client import ClientConfig
from headrace.config.consumer import ConsumerConfig, dotted
from headrace.config.producer import ProducerConfig
from headrace.config.share import OWN
from headrace.errors import ConfigError
from headrace.local.certificates import Authority

SERVERS = {"bootstrap.servers": "b1:9092"}
FIELDS = dataclasses.fields(ProducerConfig)
NAMES = {field.name for field in FIELDS}


def parsed(**settings: Any) -> ProducerConfig:
    return ProducerConfig.parse(SERVERS, **settings)


def test_the_defaults_of_a_producer_are_java_s() -> None:
    java = {
        "acks": -1,
        "batch_size": 16_384,
        "buffer_memory": 33_554_432,
        "compression_gzip_level": -1,
        "compression_lz4_level": 9,
        "compression_type": "none",
        "compression_zstd_level": 3,
        "connections_max_idle_ms": 540_000,
        "delivery_timeout_ms": 120_000,
        "enable_idempotence": True,
        "linger_ms": 5,
        "max_block_ms": 60_000,
        "max_in_flight_requests_per_connection": 5,
        "max_request_size": 1_048_576,
        "metadata_max_age_ms": 300_000,
        "metadata_max_idle_ms": 300_000,
        "metadata_recovery_strategy": "rebootstrap",
        "partitioner_adaptive_partitioning_enable": True,
        "partitioner_availability_timeout_ms": 0,
        "partitioner_ignore_keys": False,
        "reconnect_backoff_max_ms": 1_000,
        "reconnect_backoff_ms": 50,
        "request_timeout_ms": 30_000,
        "retries": 2_147_483_647,
        "retry_backoff_max_ms": 1_000,
        "retry_backoff_ms": 100,
        "transaction_timeout_ms": 60_000,
        "transaction_two_phase_commit_enable": False,
        "transactional_id": None,
    }
    found = parsed()
    assert {name: getattr(found, name) for name in java} == java
    assert (found.client_id, found.partitioner, found.is_transactional) == ("headrace", "default", False)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_producer_setting_has_a_meaning_and_a_valid_default(field: dataclasses.Field[Any]) -> None:
    assert field.metadata["meaning"]
    if field.default is not dataclasses.MISSING:
        assert field.metadata["parse"](field.default) == field.default, "a default must be valid itself"


def test_producer_settings_are_parsed_from_strings() -> None:
    found = ProducerConfig.parse({**SERVERS, "linger.ms": " 20 ", "compression.type": "ZSTD"}, batch_size="100000")
    assert (found.linger_ms, found.compression_type, found.batch_size) == (20, "zstd", 100_000)


def test_a_producer_needs_a_broker() -> None:
    with pytest.raises(ConfigError, match=r"^bootstrap\.servers is missing"):
        ProducerConfig.parse(acks="all")


def test_a_producer_setting_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^linger\.ms is given twice$"):
        ProducerConfig.parse({**SERVERS, "linger.ms": 5}, linger_ms=5)


def test_security_settings_of_a_producer_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"^ssl\.key\.location needs ssl\.certificate\.location"):
        parsed(security_protocol="ssl", ssl_key_location="/nowhere")
    with pytest.raises(ConfigError, match=r"^sasl\.password=\(secret\): "):
        parsed(sasl_password=5)


# -- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [("all", -1), ("ALL", -1), (" all ", -1), ("-1", -1), (-1, -1), ("1", 1), (1, 1), ("0", 0), (0, 0)],
)
def test_acks_are_all_or_one_or_none(given: Any, found: int) -> None:
    assert parsed(acks=given).acks == found


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("acks", 2, "all (or -1), 1 or 0"),
        ("acks", "leader", "all (or -1), 1 or 0"),
        ("acks", True, "all (or -1), 1 or 0"),
        ("acks", None, "all (or -1), 1 or 0"),
        ("acks", 1.0, "all (or -1), 1 or 0"),
        ("enable_idempotence", "yes", "true or false"),
        ("retries", -1, "between 0 and 2147483647"),
        ("retries", 2**31, "between 0 and 2147483647"),
        ("delivery_timeout_ms", -1, "between 0 and"),
        ("max_in_flight_requests_per_connection", 0, "between 1 and"),
        ("linger_ms", -1, "between 0 and"),
        ("linger_ms", 0.5, "a whole number"),
        ("linger_ms", "0.5", "a whole number"),
        ("batch_size", -1, "between 0 and"),
        ("buffer_memory", 0, "between 1 and"),
        ("buffer_memory", 2**63, "between 1 and"),
        ("max_block_ms", -1, "between 0 and"),
        ("max_request_size", 0, "between 1 and"),
        ("compression_type", "brotli", "none or gzip or snappy or lz4 or zstd"),
        ("compression_gzip_level", 0, "between 1 and 9, or -1"),
        ("compression_gzip_level", 10, "between -1 and 9"),
        ("compression_gzip_level", -2, "between -1 and 9"),
        ("compression_lz4_level", 0, "between 1 and 17"),
        ("compression_lz4_level", 18, "between 1 and 17"),
        ("compression_zstd_level", 23, "between -131072 and 22"),
        ("compression_zstd_level", -131_073, "between -131072 and 22"),
        ("partitioner", "sticky", "default or murmur2_random or consistent_random"),
        ("partitioner", "consistent", "use consistent_random"),
        ("partitioner", "murmur2", "use murmur2_random"),
        ("partitioner", "random", "use partitioner.ignore.keys=true"),
        ("partitioner", "fnv1a", "choose the partition in your code"),
        ("partitioner", "FNV1A_random", "choose the partition in your code"),
        ("partitioner", 5, "a string"),
        ("partitioner_availability_timeout_ms", -1, "between 0 and"),
        ("transactional_id", "", "must not be empty"),
        ("transactional_id", "  ", "must not be empty"),
        ("transactional_id", 5, "a string"),
        ("transactional_id", "t" * 2**15, "at most 32767 bytes"),
        ("transaction_timeout_ms", 0, "between 1 and"),
        ("metadata_max_idle_ms", 4_999, "between 5000 and"),
        ("request_timeout_ms", 0, "between 1 and"),
    ],
)
def test_invalid_values_of_producer_settings_are_refused(name: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(**{name: value})
    assert str(caught.value).startswith(f"{dotted(name)}={short_repr(value)}: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retries", 1),
        ("linger_ms", 0),
        ("batch_size", 0),
        ("buffer_memory", 1),
        ("buffer_memory", 2**40),
        ("max_block_ms", 0),
        ("compression_gzip_level", 1),
        ("compression_gzip_level", 9),
        ("compression_lz4_level", 1),
        ("compression_lz4_level", 17),
        ("compression_zstd_level", -131_072),
        ("compression_zstd_level", 22),
        ("max_in_flight_requests_per_connection", 1),
        ("max_in_flight_requests_per_connection", 5),
        ("partitioner", "murmur2_random"),
        ("partitioner", "consistent_random"),
        ("transaction_timeout_ms", 1),
        ("metadata_max_idle_ms", 5_000),
    ],
)
def test_values_of_producer_settings_at_their_bounds_are_accepted(name: str, value: Any) -> None:
    assert getattr(parsed(**{name: value}), name) == value


# -- idempotence -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "is_idempotent"),
    [
        ({}, True),
        ({"acks": "all", "retries": 1}, True),
        ({"enable_idempotence": True}, True),
        ({"enable_idempotence": False}, False),
        ({"acks": 1}, False),
        ({"acks": 0}, False),
        ({"retries": 0}, False),
        ({"acks": 1, "enable_idempotence": False}, False),
    ],
    ids=str,
)
def test_idempotence_is_on_unless_acks_or_retries_exclude_it(settings: dict[str, Any], is_idempotent: bool) -> None:
    assert parsed(**settings).enable_idempotence is is_idempotent


@pytest.mark.parametrize(
    ("settings", "missing"), [({"acks": 1}, "acks=all"), ({"acks": 0}, "acks=all"), ({"retries": 0}, "retries above 0")]
)
def test_idempotence_that_the_user_wants_needs_acks_and_retries(settings: dict[str, Any], missing: str) -> None:
    with pytest.raises(ConfigError, match=f"^enable.idempotence=true needs {missing}"):
        parsed(enable_idempotence="true", **settings)


@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": True}], ids=["default", "given"])
def test_an_idempotent_producer_has_at_most_5_requests_in_flight(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^max\.in\.flight\.requests\.per\.connection=6: must be at most 5 with"):
        parsed(max_in_flight_requests_per_connection=6, **settings)


@pytest.mark.parametrize("settings", [{"enable_idempotence": False}, {"acks": 1}, {"retries": 0}], ids=str)
def test_without_idempotence_more_requests_may_be_in_flight(settings: dict[str, Any]) -> None:
    found = parsed(max_in_flight_requests_per_connection=100, **settings)
    assert found.max_in_flight_requests_per_connection == 100


# -- the delivery timeout ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("linger", "request_timeout", "raised_to"),
    [
        (5, 30_000, 120_000),
        (90_000, 30_000, 120_000),
        (90_001, 30_000, 120_001),
        (0, 200_000, 200_000),
        (2**31 - 1, 30_000, 2**31 - 1),
    ],
)
def test_the_default_delivery_timeout_covers_linger_and_request_timeout(
    linger: int, request_timeout: int, raised_to: int
) -> None:
    assert parsed(linger_ms=linger, request_timeout_ms=request_timeout).delivery_timeout_ms == raised_to


def test_a_given_delivery_timeout_must_cover_linger_and_request_timeout() -> None:
    least = {"linger_ms": 5, "request_timeout_ms": 1_000}
    assert parsed(delivery_timeout_ms=1_005, **least).delivery_timeout_ms == 1_005
    with pytest.raises(
        ConfigError,
        match=r"^delivery\.timeout\.ms=1004: must be at least linger\.ms \+ request\.timeout\.ms, which is 1005$",
    ):
        parsed(delivery_timeout_ms=1_004, **least)


# -- transactions ------------------------------------------------------------------------------------------------


def test_a_producer_with_a_transactional_id_is_idempotent_with_all_acks() -> None:
    found = parsed(transactional_id=" orders-1 ")
    assert (found.transactional_id, found.is_transactional) == ("orders-1", True)
    assert (found.enable_idempotence, found.acks) == (True, -1)


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"enable_idempotence": False}, "enable.idempotence=true"),
        ({"enable_idempotence": False, "acks": 1}, "enable.idempotence=true"),
        ({"acks": 1}, "acks=all"),
        ({"acks": 0, "enable_idempotence": True}, "acks=all"),
        ({"retries": 0}, "retries above 0"),
    ],
    ids=str,
)
def test_transactions_need_idempotence(settings: dict[str, Any], missing: str) -> None:
    with pytest.raises(ConfigError, match=f"^transactional.id needs {missing}"):
        parsed(transactional_id="t", **settings)


def test_no_transactional_id_is_none() -> None:
    assert parsed(transactional_id=None, acks=1).is_transactional is False


def test_two_phase_commits_exclude_a_transaction_timeout() -> None:
    assert parsed(transactional_id="t", transaction_two_phase_commit_enable=True).transaction_two_phase_commit_enable
    with pytest.raises(
        ConfigError, match=r"^transaction\.timeout\.ms cannot be set with transaction\.two\.phase\.commit\.enable=true"
    ):
        parsed(transactional_id="t", transaction_two_phase_commit_enable=True, transaction_timeout_ms=60_000)
    with pytest.raises(ConfigError, match=r"^transaction\.two\.phase\.commit\.enable=true needs a transactional\.id$"):
        parsed(transaction_two_phase_commit_enable=True)


# -- names of other clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("key.serializer", "bytes or str"),
        ("value_serializer", "bytes or str"),
        ("partitioner.class", "use partitioner"),
        ("interceptor.classes", "wrap the producer"),
        ("metric.reporters", "metrics()"),
        ("queue.buffering.max.ms", "use linger.ms"),
        ("queue.buffering.max.kbytes", "use buffer.memory"),
        ("queue.buffering.max.messages", "use buffer.memory"),
        ("message.timeout.ms", "use delivery.timeout.ms"),
        ("message.send.max.retries", "use retries"),
        ("message.max.bytes", "use max.request.size"),
        ("max.in.flight", "use max.in.flight.requests.per.connection"),
        ("compression.codec", "use compression.type"),
        ("compression.level", "compression.zstd.level"),
        ("request.required.acks", "use acks"),
        ("batch.num.messages", "use batch.size"),
        ("oauth_cb", "sasl.oauthbearer.token.callback"),
    ],
)
def test_a_producer_setting_of_other_clients_is_refused_with_what_to_do_instead(given: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.parse({**SERVERS, given: "x"})
    assert str(caught.value).startswith(f"{given} is not supported: ")
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    "name", sorted({field.name for field in dataclasses.fields(ConsumerConfig)} - NAMES), ids=dotted
)
def test_settings_of_a_consumer_are_refused_as_such(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{dotted(name)} is a setting of a consumer$"):
        ProducerConfig.parse({**SERVERS, dotted(name): "x"})


@pytest.mark.parametrize("name", OWN, ids=dotted)
def test_settings_of_a_share_consumer_are_refused_as_such(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{dotted(name)} is a setting of a share consumer$"):
        ProducerConfig.parse({**SERVERS, dotted(name): "x"})


def test_an_unknown_producer_setting_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"^unknown setting compresion\.type: did you mean compression\.type\?$"):
        ProducerConfig.parse({**SERVERS, "compresion.type": "x"})
    with pytest.raises(ConfigError, match=r"^unknown setting zzz: no setting has a similar name$"):
        parsed(zzz=1)


def test_no_setting_is_both_supported_and_refused() -> None:
    for kind in (ClientConfig, ConsumerConfig, ProducerConfig):
        assert not {field.name for field in dataclasses.fields(kind)} & kind.unsupported.keys()


def test_a_producer_connects_like_a_consumer_with_its_connection_settings(tmp_path: Path) -> None:
    """Every connection setting with a non-default value must be parsed as the consumer parses it."""
    authority = tmp_path / "ca.pem"
    authority.write_text(Authority().pem)
    numbers = {
        field.name: field.default + 1 for field in dataclasses.fields(ClientConfig) if type(field.default) is int
    }
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority),
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.endpoint.identification.algorithm": "",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": 'ScramLoginModule required username="me" password="it\'s";',
        "metadata.recovery.strategy": "none",
    }
    consumer = ConsumerConfig.parse(
        {**settings, "bootstrap.servers": "b1:9092,[::1]:9093"},
        **numbers,
        client_id="c",
        allow_auto_create_topics=False,
        on_stats=print,
    )
    producer = ProducerConfig.parse(consumer.connection_settings())
    for field in dataclasses.fields(ClientConfig):
        is_own = field.name in ("client_id", "allow_auto_create_topics", "on_stats", "statistics_interval_ms")
        wanted = field.default if is_own else getattr(consumer, field.name)
        assert getattr(producer, field.name) == wanted, field.name
