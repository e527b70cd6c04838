"""The time zone of a session (`spark.sql.session.timeZone`), as far as a Python source can know it.

Spark does not tell the Python process that plans a query. A task has the settings of its session as local properties,
but only those that are set. Otherwise the session has the zone of the driver's JVM: `-Duser.timezone`, or the one that
Java finds on the machine. The process that plans runs on the same machine, and looks in the same places.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyspark import TaskContext

from ..formats._zones import names

_SETTING = "spark.sql.session.timeZone"
_JVM_SETTINGS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_USER_TIMEZONE = re.compile(r"-Duser\.timezone=[\"']?([^\s\"']+)")


def session_time_zone() -> str | None:
    """In a task: the zone that the session, or the driver's JVM, was given. None if there is none, or no task."""
    context = TaskContext.get()
    if context is None:
        return None
    zone = context.getLocalProperty(_SETTING)
    if zone is not None:
        return zone
    for setting in _JVM_SETTINGS:
        if found := _USER_TIMEZONE.search(context.getLocalProperty(setting) or ""):
            return found[1]
    return None


def default_time_zone() -> str:
    """The zone of this machine, as Java finds it."""
    for variable in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        if found := _USER_TIMEZONE.search(os.environ.get(variable, "")):
            return found[1]
    candidates = (os.environ.get("TZ", "").removeprefix(":"), _linked_zone(), _named_zone())
    return next((name for name in candidates if name in names()), "UTC")


def _linked_zone() -> str:
    """/etc/localtime is a link to a file of the database."""
    return os.path.realpath("/etc/localtime").rpartition("/zoneinfo/")[2]


def _named_zone() -> str:
    try:
        return Path("/etc/timezone").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
