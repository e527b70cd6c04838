"""Settings of a group, which the coordinator keeps."""

from __future__ import annotations

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave most of them out
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from support.brokers.admin import client_settings
from support.harness.waiting import wait_for

_TIMEOUT = 60.0


def set_session_timeout(bootstrap_servers: str, group: str, milliseconds: int) -> None:
    """For a group of KIP-848, whose members cannot choose it themselves."""
    configure_group(bootstrap_servers, group, consumer_session_timeout_ms=milliseconds)


def configure_group(bootstrap_servers: str, group: str, **settings: object) -> None:
    """Sets what is given (`share_isolation_level="read_committed"`), and waits until the broker has heard of it: the
    answer comes from the controller, and who joins at once may be earlier."""
    wanted = {name.replace("_", "."): str(value) for name, value in settings.items()}
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()]
    client = AdminClient(client_settings(bootstrap_servers))
    changed = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    client.incremental_alter_configs([changed])[changed].result(_TIMEOUT)
    asked = ConfigResource(ResourceType.GROUP, group)

    def is_known() -> bool:
        found = client.describe_configs([asked])[asked].result(_TIMEOUT)
        return all(name in found and found[name].value == value for name, value in wanted.items())

    wait_for(f"the settings of {group}", is_known)
