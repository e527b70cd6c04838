"""Which schema of a registry a format reads and writes: one of each subject, fixed when it is first needed."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from .._format import Source
from ..errors import ConfigError
from ._registry import RegisteredSchema, Registry, SchemaKind


def is_registry(given: object) -> bool:
    return all(callable(getattr(given, name, None)) for name in ("schema", "latest", "look_up", "register"))


class SubjectSchemas:
    """The schemas of a registry's subjects. The first one that is seen stays, also in pickled copies, so that all tasks
    of a query read the same columns."""

    def __init__(self, registry: Registry, subject: str | None, kind: SchemaKind) -> None:
        self.registry = registry
        self._subject = subject
        self._kind = kind
        self._latest: dict[str, RegisteredSchema] = {}
        self._ids: dict[tuple[str, str], int] = {}
        # Guards both. Held while the registry is asked, so that it is asked once.
        self._lock = threading.Lock()
        _all.add(self)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {**self.__dict__, "_latest": dict(self._latest), "_ids": dict(self._ids), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())
        _all.add(self)

    def renew_after_fork(self) -> None:
        """In the child: a thread that does not exist here may hold the lock."""
        self._lock = threading.Lock()

    def subject_of(self, source: Source) -> str:
        return self._subject or source.subject

    def latest(self, source: Source) -> RegisteredSchema:
        """The latest schema of the subject when it was first needed. Raises SchemaRegistryError.

        Without records there is no topic. Then it is that of the only subject so far; ConfigError if there is none.
        """
        subject = self.subject_of(source)
        with self._lock:
            if not source.topic and self._subject is None:
                if len(self._latest) != 1:
                    raise ConfigError("the schema depends on the topic, and there is none: give the format a subject")
                (subject,) = self._latest
            found = self._latest.get(subject)
            if found is None:
                found = self.registry.latest(subject)
                if found.kind != self._kind:
                    raise ConfigError(
                        f"the schema of subject {subject} is {found.kind}, not {self._kind}: use the format for it"
                    )
                self._latest[subject] = found
            return found

    def id_of(self, source: Source, text: str, *, register: bool) -> int:
        """The id of a schema of the subject. Raises SchemaRegistryError if it is not registered, unless `register`."""
        subject = self.subject_of(source)
        with self._lock:
            found = self._ids.get((subject, text))
            if found is None:
                ask = self.registry.register if register else self.registry.look_up
                found = self._ids[subject, text] = ask(subject, text, self._kind).id
            return found


_all: weakref.WeakSet[SubjectSchemas] = weakref.WeakSet()


def _renew_all() -> None:
    for each in list(_all):
        each.renew_after_fork()


os.register_at_fork(after_in_child=_renew_all)
