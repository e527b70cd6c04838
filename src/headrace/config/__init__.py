"""Consumer settings: Kafka's names and Java's defaults, checked when a consumer is created.

`consumer` and `share` declare the settings; `headrace/_parsers.py` parses their values.
"""

from .consumer import ConsumerConfig
from .share import ShareConsumerConfig

__all__ = ["ConsumerConfig", "ShareConsumerConfig"]
