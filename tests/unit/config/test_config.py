"""Consumer settings: how they are given, validated and shown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from headrace import _parsers
from headrace._arguments import short_repr
from headrace.config.client import ClientConfig, parse_value
from headrace.config.consumer import ConsumerConfig, dotted, reset_duration_ms
from headrace.config.producer import ProducerConfig
from headrace.config.share import ShareConsumerConfig
from headrace.errors import ConfigError, HeadraceError

SERVERS = {"bootstrap.servers": "b1:9092"}
FIELDS = dataclasses.fields(ConsumerConfig)


def parsed(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig.parse(SERVERS, **settings)


# -- passing settings -------------------------------------------------------------------------------------------


def test_settings_are_a_mapping_keywords_or_both() -> None:
    by_mapping = ConsumerConfig.parse({"bootstrap.servers": "b:1", "group.id": "g", "max.poll.records": 7})
    by_keywords = ConsumerConfig.parse(bootstrap_servers="b:1", group_id="g", max_poll_records=7)
    by_both = ConsumerConfig.parse({"bootstrap.servers": "b:1", "group_id": "g"}, max_poll_records=7)
    assert by_mapping == by_keywords == by_both
    assert by_mapping.max_poll_records == 7


def test_settings_are_parsed_from_strings() -> None:
    found = parsed(max_poll_records=" 7 ", check_crcs="False", client_id=" me ", isolation_level="READ_COMMITTED")
    assert (found.max_poll_records, found.check_crcs, found.client_id) == (7, False, "me")
    assert found.isolation_level == "read_committed"


def test_the_defaults_are_java_s() -> None:
    found = ConsumerConfig.parse(SERVERS, group_id="g")
    java = {
        "allow_auto_create_topics": True,
        "auto_commit_interval_ms": 5_000,
        "auto_offset_reset": "latest",
        "check_crcs": True,
        "client_rack": "",
        "connections_max_idle_ms": 540_000,
        "default_api_timeout_ms": 60_000,
        "enable_auto_commit": True,
        "fetch_max_bytes": 52_428_800,
        "fetch_max_wait_ms": 500,
        "fetch_min_bytes": 1,
        "isolation_level": "read_uncommitted",
        "max_partition_fetch_bytes": 1_048_576,
        "max_poll_records": 500,
        "metadata_max_age_ms": 300_000,
        "metadata_recovery_strategy": "rebootstrap",
        "reconnect_backoff_max_ms": 1_000,
        "reconnect_backoff_ms": 50,
        "request_timeout_ms": 30_000,
        "retry_backoff_max_ms": 1_000,
        "retry_backoff_ms": 100,
        "socket_connection_setup_timeout_max_ms": 30_000,
        "socket_connection_setup_timeout_ms": 10_000,
    }
    assert {name: getattr(found, name) for name in java} == java


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_setting_has_a_meaning_and_a_valid_default(field: dataclasses.Field[Any]) -> None:
    assert field.metadata["meaning"]
    assert callable(field.metadata["parse"])
    if field.default is not dataclasses.MISSING and field.name != "bootstrap_servers":
        assert field.metadata["parse"](field.default) == field.default, "a default must be valid itself"


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        (ClientConfig, "client"),
        (ConsumerConfig, "consumer"),
        (ShareConsumerConfig, "consumer"),
        (ProducerConfig, "producer"),
    ],
)
def test_settings_know_the_role_of_their_client(kind: type[ClientConfig], role: str) -> None:
    assert kind.role == role
    assert "role" not in {field.name for field in dataclasses.fields(kind)}, "role is not a setting"


def test_checked_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parsed().client_id = "another"  # type: ignore[misc]


# -- brokers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("b1:9092", (("b1", 9092),)),
        (" b1:9092 , b2:9093 ,", (("b1", 9092), ("b2", 9093))),
        (["b1:9092", "b2:9093"], (("b1", 9092), ("b2", 9093))),
        ("[::1]:9092", (("::1", 9092),)),
        ("PLAINTEXT://b1:9092", (("b1", 9092),)),
        ("sasl_ssl://b1:9092", (("b1", 9092),)),
        ("EXTERNAL_1://[::1]:9092", (("::1", 9092),)),
        ("kafka-1.example.org:65535", (("kafka-1.example.org", 65535),)),
    ],
)
def test_bootstrap_servers_are_lists_of_hosts_and_ports(given: Any, found: tuple[tuple[str, int], ...]) -> None:
    assert ConsumerConfig.parse(bootstrap_servers=given).bootstrap_servers == found


@pytest.mark.parametrize(
    "given",
    [
        *(
            "",
            " , ",
            [],
            "b1",
            "b1:",
            ":9092",
            "b1:0",
            "b1:65536",
            "b1:x",
            "b1:9092/x",
            "b 1:9092",
            "::1:9092",
            5,
            None,
        ),
        *("http://b1:9092", "https://b1:9092", "HTTP://b1:9092", "kafka://b1:9092", "tcp://b1:9092", "://b1:9092"),
        *("b1:٩", b"b1:9092", {"b1:9092": 1}, 5, None),
    ],
)
def test_a_server_that_is_not_host_and_port_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^bootstrap\.servers="):
        ConsumerConfig.parse(bootstrap_servers=given)


@pytest.mark.parametrize("port", ["0", "65536", "99999", "9" * 5000])
def test_a_port_that_cannot_exist_is_named_as_the_mistake(port: str) -> None:
    with pytest.raises(ConfigError, match=r"the port of '?b1:.* is not between 1 and 65535$"):
        ConsumerConfig.parse(bootstrap_servers=f"b1:{port}")


def test_a_url_as_bootstrap_server_is_refused_as_such() -> None:
    with pytest.raises(
        ConfigError, match=r"^bootstrap\.servers='http://b1:80': 'http://b1:80' is a URL: .* host:port$"
    ):
        ConsumerConfig.parse(bootstrap_servers="http://b1:80")


@pytest.mark.parametrize("kind", [ConsumerConfig, ShareConsumerConfig, ProducerConfig])
@pytest.mark.parametrize("given", ["b1:9092", [("bootstrap.servers", "b1:9092")], 5, b"x", {"bootstrap.servers"}])
def test_settings_that_are_no_mapping_are_refused(kind: type[ConsumerConfig | ProducerConfig], given: Any) -> None:
    with pytest.raises(TypeError, match=r"^settings must be a mapping, or keywords such as") as caught:
        kind.parse(given)
    assert "b1:9092" not in str(caught.value), "the argument may contain passwords"


def test_settings_without_a_broker_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        ConsumerConfig.parse(group_id="g")


# -- rejected values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("max_poll_records", 0, "at least 1, or -1 for no limit"),
        ("max_poll_records", -2, "between -1 and"),
        ("max_poll_records", 2**31, "between -1 and"),
        ("max_poll_records", "many", "a whole number"),
        ("max_poll_records", 1.5, "a whole number"),
        ("max_poll_records", True, "a whole number"),
        ("max_poll_records", None, "a whole number"),
        ("fetch_max_wait_ms", -1, "between 0 and"),
        ("fetch_max_bytes", 0, "between 1 and"),
        ("queued_max_bytes", 0, "between 1 and"),
        ("request_timeout_ms", 0, "between 1 and"),
        ("receive_message_max_bytes", 999, "between 1000 and"),
        ("connections_max_idle_ms", -2, "between -1 and"),
        ("check_crcs", "yes", "true or false"),
        ("check_crcs", 1, "true or false"),
        ("client_id", 5, "a string"),
        ("group_id", 5, "a string"),
        ("isolation_level", "serializable", "read_uncommitted or read_committed"),
        ("poll_drain_strategy", "random", "fair or greedy"),
        ("security_protocol", "TLS", "plaintext or ssl or sasl_plaintext or sasl_ssl"),
        ("auto_offset_reset", "newest", "earliest, latest, none or by_duration"),
        ("auto_offset_reset", f"by_duration:PT{'9' * 400}S", "the duration of by_duration is too long"),
        ("group_id", "", "must not be empty"),
        ("group_id", "  ", "must not be empty"),
        ("group_instance_id", "", "must not be empty"),
        ("group_id", "g\udc80", "lone surrogates"),
        ("group_id", "g" * 2**15, "at most 32767 bytes"),
        ("client_id", "c\udc80", "lone surrogates"),
        ("client_id", "c" * 2**15, "at most 32767 bytes"),
        ("client_rack", "\ud800", "lone surrogates"),
        ("group_remote_assignor", "\ud800", "lone surrogates"),
        ("parallel_rebalance_backlog_share", 10**400, "a number between 0 and 1"),
        ("parallel_rebalance_backlog_share", float("nan"), "above 0 and below 1"),
        ("max_poll_records", "9" * 5000, "a whole number"),
    ],
)
def test_values_out_of_bounds_are_refused(name: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(**{name: value})
    assert str(caught.value).startswith(f"{dotted(name)}={short_repr(value)}: ")
    assert reason in str(caught.value)
    assert isinstance(caught.value, HeadraceError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_poll_records", -1),
        ("max_poll_records", 1),
        ("max_poll_records", 2**31 - 1),
        ("fetch_max_wait_ms", 0),
        ("connections_max_idle_ms", -1),
        ("send_buffer_bytes", -1),
    ],
)
def test_values_at_their_bounds_are_accepted(name: str, value: int) -> None:
    assert getattr(parsed(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("auto.offset.rest", "auto.offset.reset"),
        ("max_pol_records", "max_poll_records"),
        ("bootstrap.server", "bootstrap.servers"),
        ("groupid", "group.id"),
    ],
)
def test_an_unknown_setting_is_refused_with_a_suggestion(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"^unknown setting {given}: did you mean {meant}\\?$"):
        ConsumerConfig.parse({**SERVERS, given: "x"})


def test_an_unknown_setting_without_a_similar_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^unknown setting zzz: no setting has a similar name$"):
        parsed(zzz=1)


@pytest.mark.parametrize("given", ["metric.reporters", "interceptor.classes"])
def test_a_setting_of_other_clients_is_refused_with_what_to_do_instead(given: str) -> None:
    with pytest.raises(ConfigError, match=f"^{given} is not supported: "):
        ConsumerConfig.parse({**SERVERS, given: "x"})


def test_a_setting_whose_name_is_no_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a string, not 5"):
        ConsumerConfig.parse({5: "x"})  # type: ignore[dict-item]


@pytest.mark.parametrize("value", ["g", "another"], ids=["the same", "another"])
def test_a_setting_that_is_given_twice_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^group\.id is given twice$"):
        ConsumerConfig.parse({**SERVERS, "group.id": "g"}, group_id=value)
    with pytest.raises(ConfigError, match=r"^group\.id is given twice$"):
        ConsumerConfig.parse({**SERVERS, "group.id": "g", "group_id": value})


# -- auto-commit and the group -----------------------------------------------------------------------------------


def test_without_a_group_id_auto_commit_is_off() -> None:
    found = parsed(group_id=None)
    assert (found.group_id, found.enable_auto_commit) == (None, False)
    assert parsed(group_id=None, enable_auto_commit=False).enable_auto_commit is False
    with pytest.raises(ConfigError, match=r"enable\.auto\.commit=true needs a group\.id"):
        parsed(group_id=None, enable_auto_commit="true")


def test_with_a_group_id_auto_commit_is_on_by_default() -> None:
    assert parsed(group_id="g").enable_auto_commit is True
    assert parsed(group_id="g", enable_auto_commit=False).enable_auto_commit is False


# -- by_duration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P1D", 86_400_000),
        ("PT1H", 3_600_000),
        ("PT1M", 60_000),
        ("PT1S", 1_000),
        ("PT0.25S", 250),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt5m", 300_000),
        (" PT5M ", 300_000),
        ("PT0S", 0),
        ("P20000D", 1_728_000_000_000),
    ],
)
def test_reset_durations_are_iso_8601(text: str, ms: int) -> None:
    reset = parsed(auto_offset_reset=f"by_duration:{text}").auto_offset_reset
    assert reset_duration_ms(reset) == ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1D", "-P1D", "P-1D", "P1H", "PT1D", "P1DT1.5H", "P1W", "1000", "P1D2"]
)
def test_a_reset_by_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^auto\.offset\.reset=.*by_duration"):
        parsed(auto_offset_reset=f"by_duration:{text}")


# -- secrets -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithSecret:
    """A configuration with a secret field, built like ConsumerConfig."""

    user: str = _parsers.setting(_parsers.parse_text, "", "Who.")
    sasl_password: str = _parsers.setting(_parsers.parse_text, "", "The password.", secret=True)


def test_the_repr_of_settings_does_not_show_secrets() -> None:
    shown = repr(WithSecret(user="me", sasl_password="hunter2"))
    assert "me" in shown
    assert "hunter2" not in shown


def test_the_error_of_an_invalid_secret_does_not_show_it() -> None:
    fields = {field.name: field for field in dataclasses.fields(WithSecret)}
    with pytest.raises(ConfigError, match=r"^sasl\.password=\(secret\): must be a string$") as caught:
        parse_value(fields["sasl_password"], b"hunter2")
    assert caught.value.__suppress_context__
    with pytest.raises(ConfigError, match="12"):
        parse_value(fields["user"], 12)


def test_no_setting_looks_like_a_secret_without_being_marked_as_one() -> None:
    for field in (*FIELDS, *dataclasses.fields(ProducerConfig)):
        if any(word in field.name for word in ("password", "secret", "token", "jaas", "private_key")):
            assert field.metadata["secret"]
            assert not field.repr
