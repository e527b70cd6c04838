"""Settings of other clients: the error of each says what docs/moving-over.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.config.client import ClientConfig
from headrace.config.consumer import ConsumerConfig
from headrace.config.other_clients import ALL_CLIENTS, CONSUMERS, PAGE, PRODUCERS
from headrace.config.producer import ProducerConfig
from headrace.config.share import ShareConsumerConfig
from headrace.errors import ConfigError

EVERY: tuple[type[ClientConfig], ...] = (ConsumerConfig, ShareConsumerConfig, ProducerConfig)
ROOT = Path(__file__).parents[3]
MOST_USED = {  # by programs that use these clients
    "consumer_timeout_ms",
    "api_version",
    "sasl_plain_username",
    "sasl_plain_password",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_context",
    "ssl_check_hostname",
    "loop",
    "max_batch_size",
    "error_cb",
    "log_cb",
    "logger",
    "debug",
    "on_commit",
    "on_delivery",
    "enable_partition_eof",
    "enable_auto_offset_store",
    "throttle_cb",
    "queued_min_messages",
    "socket_timeout_ms",
    "socket_keepalive_enable",
    "topic_metadata_refresh_interval_ms",
}


def documented() -> dict[tuple[str, str], str]:
    """The answers of the page, by the setting and the kind of client."""
    text = (ROOT / PAGE).read_text()
    section = text.split("## Settings with another name or none")[1].split("\n## ")[0]
    found: dict[tuple[str, str], str] = {}
    for names, answer in re.findall(r"^\| (`.*) \| (.*) \|$", section, re.M):
        kind = names.rpartition("(")[2].rstrip(")") if "(" in names else ""
        found |= {(name, kind): answer for name in re.findall(r"`(.+?)`", names)}
    return found


def test_the_page_and_the_errors_say_the_same() -> None:
    tables = {"": ALL_CLIENTS, "consumers": CONSUMERS, "producers": PRODUCERS}
    assert documented() == {(name, kind): answer for kind, table in tables.items() for name, answer in table.items()}
    assert {name for name, _ in documented()} >= MOST_USED


def raised(config: type[ClientConfig], name: str) -> str:
    with pytest.raises(ConfigError) as error:
        config.parse(
            {"bootstrap.servers": "b:1", "group.id": "g", name: "x"}
            if config is not ProducerConfig
            else {"bootstrap.servers": "b:1", name: "x"}
        )
    return str(error.value)


@pytest.mark.parametrize(
    ("config", "name", "answer"),
    [
        *((config, *row) for config in EVERY for row in ALL_CLIENTS.items()),
        *((ConsumerConfig, *row) for row in CONSUMERS.items()),
        *((ProducerConfig, *row) for row in PRODUCERS.items()),
    ],
    ids=lambda it: it if isinstance(it, str) and " " not in it else getattr(it, "role", ""),
)
def test_a_setting_of_another_client_is_answered(config: type[ClientConfig], name: str, answer: str) -> None:
    dotted = name.replace("_", ".")
    assert raised(config, name) == f"{name} is not supported: {answer} ({PAGE})"
    assert raised(config, dotted) == f"{dotted} is not supported: {answer} ({PAGE})"


def test_an_answer_names_settings_that_exist() -> None:
    settings = {field.replace("_", ".") for config in EVERY for field in config.__dataclass_fields__}
    for answer in {**ALL_CLIENTS, **CONSUMERS, **PRODUCERS}.values():
        used = re.findall(r"\b[a-z]+(?:\.[a-z]+)+\b", answer)
        assert set(used) <= settings, answer
