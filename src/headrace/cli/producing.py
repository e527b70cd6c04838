"""confluent-kafka's producer for the commands that write. Settings of security may have Java's names, as in the file of
`headrace up --secure`; all others are the producer's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headrace.config import ConsumerConfig
from headrace.errors import ConfigError, HeadraceError
from headrace.security.librdkafka import librdkafka_settings
from headrace.security.settings import FIELDS, SYNONYMS


def make_producer(settings: Mapping[str, Any]) -> Any:
    """One that logs nothing. Raises HeadraceError without the package, ConfigError for settings that cannot be used."""
    try:
        from confluent_kafka import KafkaException, Producer
    except ImportError:
        raise HeadraceError("writing needs confluent-kafka: pip install 'headrace[produce]'") from None
    try:
        return Producer({"client.id": "headrace-cli", **_translated(settings), "logger": _quiet()})
    except KafkaException as error:
        raise ConfigError(f"confluent-kafka: {error.args[0].str()}") from None


def for_getting_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of them that this project's own clients understand: where the cluster is, and how to get in."""
    return {name: value for name, value in settings.items() if name == "bootstrap.servers" or _is_of_security(name)}


def _translated(settings: Mapping[str, Any]) -> dict[str, Any]:
    security = for_getting_in(settings)
    parsed = ConsumerConfig.parse(security)
    others = {name: value for name, value in settings.items() if name not in security or name == "bootstrap.servers"}
    translated = librdkafka_settings(parsed)
    if "oauth_cb" in translated:  # then tokens are asked for here, whatever the method
        others.pop("sasl.oauthbearer.method", None)
    return {**others, **translated}


def _is_of_security(name: str) -> bool:
    field = name.replace(".", "_")
    return field in FIELDS or field in SYNONYMS


def _quiet() -> logging.Logger:
    logger = logging.getLogger("headrace.librdkafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    return logger
