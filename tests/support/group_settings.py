"""Settings of a group, which the coordinator keeps."""

from __future__ import annotations

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave most of them out
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from .admin import client_settings

_TIMEOUT = 30.0


def set_session_timeout(bootstrap_servers: str, group: str, milliseconds: int) -> None:
    """For a group of KIP-848, whose members cannot choose it themselves."""
    entry = ConfigEntry("consumer.session.timeout.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    client = AdminClient(client_settings(bootstrap_servers))
    client.incremental_alter_configs([resource])[resource].result(_TIMEOUT)
