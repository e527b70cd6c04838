"""The client of a schema registry with Confluent's REST API (Confluent's, Apicurio's, Karapace, Redpanda's).

client.py      SchemaRegistry: schemas by id or subject, registration
references.py  the schemas that a schema refers to
answers.py     the fields of responses, and errors
cache.py       schemas that were fetched, and one fetch for many threads
login.py       URLs, credentials and TLS; keeps secrets out of messages
http.py        requests with deadlines, retries, failover, redirects
connection.py  one HTTP connection, and the idle ones
"""

from .client import SchemaRegistry

__all__ = ["SchemaRegistry"]
