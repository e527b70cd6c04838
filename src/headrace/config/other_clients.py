"""Settings and callbacks of aiokafka, kafka-python and confluent-kafka (librdkafka) under names that headrace does not
have, with what to do instead. The errors and docs/moving-over.md say the same: a test compares them.

Java's own settings are not here: Spark passes them on, and ignores those that only a JVM has.
"""

from __future__ import annotations

PAGE = "docs/moving-over.md"

_EXCEPTIONS = "errors raise exceptions. Set on_event for problems in the background"
_LOGGING = "use Python's logging: the loggers begin with headrace"
_VERSIONS = "leave it out: brokers are asked for their versions"
_DELIVERY = "call result() on what send() returns, or await it. flush() raises errors that nobody has seen"

ALL_CLIENTS = {
    "metadata_broker_list": "use bootstrap.servers",
    "error_cb": _EXCEPTIONS,
    "logger": _LOGGING,
    "log_cb": _LOGGING,
    "log_level": _LOGGING,
    "debug": _LOGGING,
    "throttle_cb": "no equivalent: requests wait for as long as the broker asks for",
    "api_version": _VERSIONS,
    "api_version_request": _VERSIONS,
    "broker_version_fallback": _VERSIONS,
    "loop": "leave it out: asyncio clients use the running loop",
    "socket_timeout_ms": "use request.timeout.ms",
    "socket_keepalive_enable": "leave it out: connections use TCP keepalive",
    "socket_nagle_disable": "leave it out: connections do not delay small requests",
    "topic_metadata_refresh_interval_ms": "use metadata.max.age.ms",
    "sasl_plain_username": "use sasl.username",
    "sasl_plain_password": "use sasl.password",
    "sasl_oauth_token_provider": "use sasl.oauthbearer.token.callback, a function without arguments",
    "sasl_kerberos_domain_name": "leave it out: the service of each broker has the name of its host",
    "ssl_context": "use the settings ssl.ca.location, ssl.certificate.location, ssl.key.location and ssl.key.password",
    "ssl_cafile": "use ssl.ca.location",
    "ssl_certfile": "use ssl.certificate.location",
    "ssl_keyfile": "use ssl.key.location",
    "ssl_password": "use ssl.key.password",
    "ssl_ciphers": "use ssl.cipher.suites",
    "ssl_check_hostname": "use ssl.endpoint.identification.algorithm: https, or none for no check",
}
CONSUMERS = {
    "consumer_timeout_ms": "an iteration does not end: call poll(seconds), which returns no records after that time",
    "enable_partition_eof": "compare position(tp) with end_offsets([tp])",
    "enable_auto_offset_store": "set commit.mode=done, and call done(record)",
    "auto_commit_enable": "use enable.auto.commit",
    "on_commit": "pass a callback to commit_async()",
    "offset_commit_cb": "pass a callback to commit_async()",
    "default_offset_commit_callback": "pass a callback to commit_async()",
    "rebalance_cb": "pass a RebalanceListener to subscribe()",
    "rebalance_timeout_ms": "use max.poll.interval.ms",
    "queued_min_messages": "fetched records are limited in bytes: use queued.max.bytes",
    "queued_max_messages_kbytes": "use queued.max.bytes, which is in bytes",
    "fetch_message_max_bytes": "use max.partition.fetch.bytes",
    "fetch_wait_max_ms": "use fetch.max.wait.ms",
    "fetch_error_backoff_ms": "use retry.backoff.ms",
    "fetch_queue_backoff_ms": "leave it out: fetches continue as soon as there is room",
    "enable_incremental_fetch_sessions": "leave it out: fetches always use sessions",
}
PRODUCERS = {
    "on_delivery": _DELIVERY,
    "dr_cb": _DELIVERY,
    "delivery_report_only_error": _DELIVERY,
    "max_batch_size": "use batch.size",
}


def _pointing(answers: dict[str, str]) -> dict[str, str]:
    return {name: f"{answer} ({PAGE})" for name, answer in answers.items()}


ALL_HINTS, CONSUMER_HINTS, PRODUCER_HINTS = map(_pointing, (ALL_CLIENTS, CONSUMERS, PRODUCERS))
