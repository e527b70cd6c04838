"""Group settings, which the coordinator stores."""

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
    """Set the session timeout of a KIP-848 group, whose members cannot choose it."""
    configure_group(bootstrap_servers, group, consumer_session_timeout_ms=milliseconds)


def configure_group(bootstrap_servers: str, group: str, **settings: object) -> None:
    """Set group settings (`share_isolation_level="read_committed"`) and wait until the broker knows them. The
    controller responds earlier, so a member that joins at once might not get them."""
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
