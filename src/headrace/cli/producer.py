"""Creates confluent-kafka's producer. Security settings may have Java's names, as in the file of `headrace up
--secure`; all other settings are those of confluent-kafka."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .._security.librdkafka import librdkafka_settings
from .._security.settings import FIELDS, SYNONYMS
from ..config.consumer import ConsumerConfig
from ..errors import ConfigError, HeadraceError


def make_producer(settings: Mapping[str, Any]) -> Any:
    """A producer that logs nothing. Raises HeadraceError without the package, and ConfigError for invalid settings."""
    try:
        from confluent_kafka import KafkaException, Producer
    except ImportError:
        raise HeadraceError("producing needs confluent-kafka: pip install 'headrace[produce]'") from None
    try:
        return Producer({"client.id": "headrace-cli", **_translated(settings), "logger": _quiet()})
    except KafkaException as error:
        raise ConfigError(f"confluent-kafka: {error.args[0].str()}") from None


def security_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that headrace's own client accepts: the address of the cluster, and the security settings."""
    return {name: value for name, value in settings.items() if name == "bootstrap.servers" or _is_of_security(name)}


def _translated(settings: Mapping[str, Any]) -> dict[str, Any]:
    security = security_settings(settings)
    parsed = ConsumerConfig.parse(security)
    others = {name: value for name, value in settings.items() if name not in security or name == "bootstrap.servers"}
    translated = librdkafka_settings(parsed)
    if "oauth_cb" in translated:  # the callback fetches the tokens, with any method
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
