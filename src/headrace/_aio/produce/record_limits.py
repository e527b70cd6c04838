"""How large a record may be."""

from __future__ import annotations

from ...config.producer import ProducerConfig
from ...errors import RecordTooLargeError


class RecordLimits:
    def __init__(self, config: ProducerConfig) -> None:
        self._max_request_size = config.max_request_size
        self._buffer_memory = config.buffer_memory

    @property
    def largest(self) -> int:
        """The bytes of a record in a batch of its own, before compression."""
        return min(self._max_request_size, self._buffer_memory)

    def check(self, size: int, record: str = "the record") -> None:
        """Raises RecordTooLargeError. `size` is an upper bound."""
        for name, limit in (("max.request.size", self._max_request_size), ("buffer.memory", self._buffer_memory)):
            if size > limit:
                raise RecordTooLargeError(
                    f"{record} takes up to {size} bytes, which exceeds {name}={limit}: send smaller records, or raise "
                    "this setting (and max.message.bytes of the topic, which limits batches)"
                )
