"""AsyncAdmin: topics, groups, their offsets and settings, for programs that are not members of those groups.

Decisions about resets: `_machines/admin/`.
"""

from ...admin import GroupDescription as GroupDescription
from .facade import AsyncAdmin as AsyncAdmin
