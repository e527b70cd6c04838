"""Member ids that clients choose themselves (KIP-848, KIP-932)."""

from __future__ import annotations

import base64
import uuid


def new_member_id() -> str:
    """A random UUID in the form of Kafka's own: 22 characters, base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
