"""`SchemaRegistry`: the schemas of a registry."""

from __future__ import annotations

import json
import os
import ssl
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args
from urllib.parse import quote

from ..._arguments import number_of, short_repr, whole_number_of
from ...errors import ConfigError
from .._registry import IdKind, RegisteredSchema, SchemaKind, SchemaReference
from .answers import RawReference, RawSchema, content_in, id_in, json_in, kind_in, references_in, schema_in
from .cache import SchemaCache
from .http import RegistryHttp
from .login import Endpoint, RegistryLogin, TlsFiles, Token
from .references import resolve

_LARGEST_ID = 2**63 - 1


class SchemaRegistry:
    """The client of a schema registry with Confluent's REST API.

        registry = SchemaRegistry("http://localhost:8081")
        registry = SchemaRegistry("https://registry.example", username="key", password=secret)

    :param url: the URL, or several (a list, or separated by commas): if one does not respond, the next one is asked.
        Apicurio's ends with `/apis/ccompat/v7`. A user and a password in the URL are used, and never shown.
    :param username: for HTTP Basic authentication, with `password`.
    :param token: for Bearer authentication: a token, or a function that returns one and is called for every request.
    :param headers: further HTTP headers, such as `target-sr-cluster`. They are treated as secrets.
    :param ca_file: a PEM file with the CAs to trust. None: those of the system.
    :param cert_file: a PEM file with the certificate of this client, with `key_file` and `key_password` if needed.
    :param ssl_context: instead of these files. A registry with a context cannot be pickled, so not be used in Spark.
    :param timeout: the maximum duration of a call in seconds, with retries and references.
    :param request_timeout: the maximum duration of one request, in seconds.
    :param retries: how often a request is repeated if the registry does not respond, or responds with 429 or 5xx.
    :param cache_size: the number of schemas that are kept.

    All methods block. They can be called by any thread, but not in an event loop: there, use
    `await asyncio.to_thread(registry.latest, "orders-value")`. Many threads that need the same schema cause one
    request. Failures raise `SchemaRegistryError`; `retriable` says whether to repeat the call. An unknown id, subject
    or version raises `SchemaNotFoundError`.

    A registry can be pickled. The pickle contains the secrets; `repr()` and errors do not.
    """

    def __init__(
        self,
        url: str | Iterable[str],
        *,
        username: str | None = None,
        password: str | None = None,
        token: Token | None = None,
        headers: Mapping[str, str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        key_password: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 30.0,
        request_timeout: float = 10.0,
        retries: int = 5,
        cache_size: int = 1000,
    ) -> None:
        endpoints = _endpoints(url)
        login = _login(endpoints, username, password, token, headers)
        tls = TlsFiles(
            _path("ca_file", ca_file), _path("cert_file", cert_file), _path("key_file", key_file), key_password
        )
        if ssl_context is not None and tls != TlsFiles():
            raise ConfigError("ssl_context cannot be combined with ca_file, cert_file, key_file and key_password")
        if tls.cert_file is None and (tls.key_file is not None or key_password is not None):
            raise ConfigError("key_file and key_password need cert_file")
        self._timeout = _positive("timeout", timeout)
        self._settings: dict[str, Any] = {
            "url": tuple(map(str, endpoints)),
            "username": login.username,
            "password": login.password,
            "token": token,
            "headers": dict(login.headers),
            "ca_file": tls.ca_file,
            "cert_file": tls.cert_file,
            "key_file": tls.key_file,
            "key_password": key_password,
            "ssl_context": ssl_context,
            "timeout": self._timeout,
            "request_timeout": _positive("request_timeout", request_timeout),
            "retries": _at_least("retries", retries, 0),
            "cache_size": _at_least("cache_size", cache_size, 1),
        }
        self._login_kind = login.kind
        self._http = RegistryHttp(
            endpoints, login, tls, ssl_context, self._settings["request_timeout"], self._settings["retries"]
        )
        self._cache = SchemaCache(self._settings["cache_size"])
        _registries.add(self)
        # Connections do not refer to this object: it closes them when it is collected.
        weakref.finalize(self, self._http.connections.close)

    # Schemas.

    def schema(self, schema_id: int, id_kind: IdKind = "id") -> RegisteredSchema:
        """The schema of an id that is part of a record. It is fetched once.

        `id_kind` is "id" for the ids of Confluent's API. "global" and "content" are Apicurio's ids, for which its own
        API is asked; there, ids of Confluent's API are content ids by default.
        """
        if not 0 <= whole_number_of("schema_id", schema_id) <= _LARGEST_ID:
            raise ValueError(f"schema_id must be between 0 and {_LARGEST_ID}, not {schema_id}")
        if id_kind not in get_args(IdKind):
            raise ValueError(f"id_kind must be 'id', 'global' or 'content', not {short_repr(id_kind)}")
        deadline = self._deadline()
        fetch = self._fetch_by_id if id_kind == "id" else self._fetch_by_apicurio_id
        return self._cache.get((id_kind, schema_id), lambda: fetch(schema_id, id_kind, deadline), deadline)

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version of a subject. The registry is asked every time."""
        deadline = self._deadline()
        return self._registered(self._fetch_version(subject, "latest", deadline), f"subject {subject!r}", deadline)

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """A version of a subject. It is fetched once."""
        _at_least("version", version, 1)
        deadline = self._deadline()

        def fetch() -> RegisteredSchema:
            raw = self._fetch_version(subject, version, deadline)
            return self._registered(raw, f"version {version} of subject {subject!r}", deadline)

        return self._cache.get(("version", _subject(subject), version), fetch, deadline)

    def subjects(self) -> list[str]:
        """The names of all subjects."""
        return [str(name) for name in json_in(self._http.call("GET", "/subjects", self._deadline()), "subjects", list)]

    def look_up(
        self, subject: str, text: str, kind: SchemaKind, references: Iterable[SchemaReference] = ()
    ) -> RegisteredSchema:
        """The registered schema of a subject with this text. It is looked up once. Raises `SchemaNotFoundError` if it
        is not registered."""
        body = _request_body(text, kind, references)
        deadline = self._deadline()

        def fetch() -> RegisteredSchema:
            what = f"subject {subject!r} with this schema"
            answer = self._http.call("POST", f"/subjects/{_quoted(subject)}", deadline, body=body)
            raw = replace(schema_in(answer, what), kind=kind)  # Apicurio does not return the kind here
            return self._registered(raw, what, deadline)

        return self._cache.get(("text", _subject(subject), body), fetch, deadline)

    def register(
        self, subject: str, text: str, kind: SchemaKind, references: Iterable[SchemaReference] = ()
    ) -> RegisteredSchema:
        """Register a schema as a version of the subject, unless it is one already. References must be registered.

        `version` is None if the registry only returns the id: `look_up` returns both.
        Raises `SchemaRegistryError` if the schema is invalid, or incompatible with the versions before it.
        """
        references = tuple(references)
        body = _request_body(text, kind, references)
        answer = self._http.call("POST", f"/subjects/{_quoted(subject)}/versions", self._deadline(), body=body)
        schema_id, version = id_in(answer, f"schema for subject {subject!r}")
        schema = RegisteredSchema(schema_id, kind, text, references, subject, version)
        key = ("text", subject, body)
        if version is None:
            self._cache.forget_unknown(key)  # look_up() asks for the version
        else:
            self._cache.put(key, schema)
        return schema

    def close(self) -> None:
        """Close idle connections. The registry can still be used."""
        self._http.connections.close()

    def __repr__(self) -> str:
        urls = ",".join(self._settings["url"])
        login = "" if self._login_kind == "none" else f", login={self._login_kind!r}"
        return f"SchemaRegistry({urls!r}{login})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._settings["ssl_context"] is not None:
            raise TypeError(
                f"{self!r} cannot be pickled, because it has an ssl_context: use ca_file, cert_file and key_file"
            )
        return _unpickled, (self._settings,)

    # Implementation.

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout

    def _fetch_by_id(self, schema_id: int, _id_kind: IdKind, deadline: float) -> RegisteredSchema:
        what = f"schema with id {schema_id}"
        raw = schema_in(self._http.call("GET", f"/schemas/ids/{schema_id}", deadline), what, schema_id)
        return self._registered(raw, what, deadline)

    def _fetch_by_apicurio_id(self, schema_id: int, id_kind: IdKind, deadline: float) -> RegisteredSchema:
        what = f"schema with {id_kind} id {schema_id}"
        path = f"/ids/{id_kind}Ids/{schema_id}"
        answer = self._http.call("GET", f"{path}?returnArtifactType=true", deadline, apicurio=True)
        raw = content_in(answer, what, schema_id)
        if raw.kind is None:  # the same content may belong to several artifacts, so the response does not tell
            search = f"/search/versions?contentId={schema_id}&limit=1"
            raw = replace(raw, kind=kind_in(self._http.call("GET", search, deadline, apicurio=True), what))
        answer = self._http.call("GET", f"{path}/references", deadline, apicurio=True)
        references = references_in(json_in(answer, what, list), answer, what)
        return self._registered(replace(raw, references=references), what, deadline)

    def _fetch_version(self, subject: str, version: int | str, deadline: float) -> RawSchema:
        what = f"subject {subject!r}" if version == "latest" else f"version {version} of subject {subject!r}"
        return schema_in(self._http.call("GET", f"/subjects/{_quoted(subject)}/versions/{version}", deadline), what)

    def _registered(self, raw: RawSchema, what: str, deadline: float) -> RegisteredSchema:
        references = resolve(raw, what, lambda reference: self._fetch_reference(reference, deadline))
        # Confluent leaves the type out if it is Avro.
        return RegisteredSchema(raw.id, raw.kind or "AVRO", raw.text, references, raw.subject, raw.version)

    def _fetch_reference(self, reference: RawReference, deadline: float) -> RawSchema:
        if reference.group is None:
            return self._fetch_version(reference.subject, reference.version, deadline)
        what = f"version {reference.version} of artifact {reference.subject!r} in group {reference.group!r}"
        path = f"/groups/{_quoted(reference.group)}/artifacts/{_quoted(reference.subject)}/versions/{reference.version}"
        raw = content_in(self._http.call("GET", f"{path}/content", deadline, apicurio=True), what)
        answer = self._http.call("GET", f"{path}/references", deadline, apicurio=True)
        return replace(raw, references=references_in(json_in(answer, what, list), answer, what))


def _unpickled(settings: dict[str, Any]) -> SchemaRegistry:
    return SchemaRegistry(**settings)


def _endpoints(url: Any) -> tuple[Endpoint, ...]:
    given = url.split(",") if isinstance(url, str) else list(url) if isinstance(url, Iterable) else [url]
    for each in given:
        if not isinstance(each, str):
            raise TypeError(f"the URL of a schema registry must be a string, not a {type(each).__name__}")
    endpoints = tuple(Endpoint.parse(each) for each in given if each.strip())
    if not endpoints:
        raise ConfigError("a schema registry needs a URL, such as http://localhost:8081")
    return endpoints


def _login(
    endpoints: tuple[Endpoint, ...],
    username: str | None,
    password: str | None,
    token: Token | None,
    headers: Mapping[str, str] | None,
) -> RegistryLogin:
    users = {endpoint.user for endpoint in endpoints if endpoint.user is not None}
    if len(users) > 1:
        raise ConfigError("the URLs of the schema registry contain different users or passwords: use the same for all")
    if users and (username is not None or password is not None or token is not None):
        raise ConfigError("the URL of the schema registry contains a user: leave out username, password and token")
    if users:
        username, password = users.pop()
    return RegistryLogin(username, password, token, {} if headers is None else headers)


def _path(name: str, path: Any) -> str | None:
    if path is None:
        return None
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path, not {short_repr(path)}")
    return os.path.abspath(os.path.expanduser(os.fspath(path)))


def _positive(name: str, value: Any) -> float:
    number = number_of(name, value)
    if not 0 < number <= 86_400:
        raise ConfigError(f"{name} must be more than 0 and at most 86400 seconds, not {value}")
    return number


def _at_least(name: str, value: Any, least: int) -> int:
    number = whole_number_of(name, value)
    if number < least:
        raise ConfigError(f"{name} must be at least {least}, not {value}")
    return number


def _subject(subject: Any) -> str:
    if not isinstance(subject, str):
        raise TypeError(f"a subject must be a string, not {short_repr(subject)}")
    if not subject:
        raise ConfigError("a subject must not be empty")
    return subject


def _quoted(subject: Any) -> str:
    return quote(_subject(subject), safe="")


def _request_body(text: Any, kind: Any, references: Iterable[SchemaReference]) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"the text of a schema must be a string, not {short_repr(text)}")
    if kind not in get_args(SchemaKind):
        raise ValueError(f"kind must be 'AVRO', 'JSON' or 'PROTOBUF', not {short_repr(kind)}")
    body: dict[str, Any] = {"schema": text}
    if kind != "AVRO":
        body["schemaType"] = kind
    # The registry knows which schemas the references refer to.
    direct = [{"name": it.name, "subject": it.subject, "version": it.version} for it in references if it.is_direct]
    if direct:
        body["references"] = direct
    return json.dumps(body).encode()


_registries: weakref.WeakSet[SchemaRegistry] = weakref.WeakSet()


def _renew_all() -> None:
    for registry in list(_registries):
        registry._http.connections.renew_after_fork()
        registry._cache.renew_after_fork()


os.register_at_fork(after_in_child=_renew_all)
