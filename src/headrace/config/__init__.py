"""The settings of clients: Kafka's names and Java's defaults, checked when a client is created.

`client` declares the settings that all clients have, and parses names; `consumer`, `share` and `producer` declare the
others; `headrace/_parsers.py` parses values.
"""
