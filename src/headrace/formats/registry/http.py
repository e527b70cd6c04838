"""Requests to a registry: deadlines, retries, failover between its URLs, redirects.

A request is idempotent, so any of these failures is retried: no connection, a connection that breaks, a timeout, and
the statuses 408, 429, 500, 502, 503 and 504. A round tries each URL once, starting with the one that responded last;
pauses between rounds grow (`Retry-After` makes them longer). The call ends at its deadline in any case.
"""

from __future__ import annotations

import email.utils
import http.client
import logging
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urljoin, urlsplit

from ..._chance import chance
from ..._version import __version__
from ...errors import SchemaRegistryError
from .connection import LARGEST_ANSWER, AnswerTooLargeError, IdleConnections, RegistryConnection
from .login import Endpoint, Origin, RegistryLogin, TlsFiles, without_userinfo

_log = logging.getLogger(__name__)

_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD = frozenset({307, 308})
_MOST_REDIRECTS = 5
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_LONGEST_MESSAGE = 500
_LONGEST_LINE = 16 * 1024
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json;q=0.9, */*;q=0.1"
_CONTENT = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that is neither a redirect nor a failure to retry."""

    status: int
    body: bytes
    artifact_type: str | None
    """Apicurio's header X-Registry-ArtifactType."""
    url: str
    """Where it came from, without user and password."""
    said: str
    """The beginning of the body for an error message, without our secrets."""


class _RetriableFailure(Exception):
    """An attempt failed, and may succeed later."""

    def __init__(self, endpoint: Endpoint, reason: str, status: int | None = None, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.endpoint = endpoint
        self.reason = reason
        self.status = status
        self.retry_after = retry_after


class RegistryHttp:
    """Sends requests. Any thread may use it. Threads share `IdleConnections`, which has a lock, and the index of the
    preferred URL, which is set by one assignment."""

    def __init__(
        self,
        endpoints: tuple[Endpoint, ...],
        login: RegistryLogin,
        tls: TlsFiles,
        ssl_context: ssl.SSLContext | None,
        request_timeout: float,
        retries: int,
    ) -> None:
        self.endpoints = endpoints
        self._login = login
        self._tls = tls
        self._given_context = ssl_context
        self._made_context: ssl.SSLContext | None = None
        self._request_timeout = request_timeout
        self._retries = retries
        self._preferred = 0
        self.connections = IdleConnections(self._context)
        if ssl_context is None and any(endpoint.origin.scheme == "https" for endpoint in endpoints):
            self._made_context = tls.context(with_certificate=True)

    def call(
        self, method: str, path: str, deadline: float, *, body: bytes | None = None, apicurio: bool = False
    ) -> Answer:
        """The response to a request for `path`, below each URL or below that of Apicurio's own API. Raises
        `SchemaRegistryError` (retriable) if there is none before the deadline."""
        failures: list[_RetriableFailure] = []
        for round_number in range(self._retries + 1):
            retry_after = 0.0
            for index, endpoint in self._in_order():
                if failures and time.monotonic() >= deadline:
                    raise self._unavailable(failures)
                try:
                    answer = self._attempt(endpoint, method, path, deadline, body, apicurio)
                except _RetriableFailure as failure:
                    failures.append(failure.with_traceback(None))
                    retry_after = max(retry_after, failure.retry_after)
                else:
                    self._preferred = index
                    return answer
            pause = max(retry_after, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**round_number) * chance.uniform(0.5, 1.0))
            if round_number == self._retries or time.monotonic() + pause >= deadline:
                break
            if round_number == 0:
                _log.warning("%s; retrying", self._describe(failures))
            time.sleep(pause)
        raise self._unavailable(failures)

    def _in_order(self) -> Iterator[tuple[int, Endpoint]]:
        first = self._preferred
        for step in range(len(self.endpoints)):
            index = (first + step) % len(self.endpoints)
            yield index, self.endpoints[index]

    def _attempt(
        self, endpoint: Endpoint, method: str, path: str, deadline: float, body: bytes | None, apicurio: bool
    ) -> Answer:
        """One request with its redirects. Raises _RetriableFailure if it may succeed later."""
        deadline = min(deadline, time.monotonic() + self._request_timeout)
        secret_headers = self._login.request_headers()
        origin = endpoint.origin
        target = (endpoint.apicurio_path if apicurio else endpoint.path) + path
        for _ in range(_MOST_REDIRECTS + 1):
            headers = {"Accept": _ACCEPT, "User-Agent": f"headrace/{__version__}"}
            if body is not None:
                headers["Content-Type"] = _CONTENT
            if origin.trusted:
                headers.update(secret_headers)
            try:
                response, data = self._exchange(origin, method, target, body, headers, deadline)
            except AnswerTooLargeError:
                raise SchemaRegistryError(
                    f"{endpoint}: the response to {method} {path} is larger than {LARGEST_ANSWER // 2**20} MiB. "
                    "Is this the URL of a schema registry?",
                    scope="schema",
                ) from None
            except ssl.SSLCertVerificationError as error:
                raise SchemaRegistryError(
                    f"cannot verify the certificate of the schema registry at {origin}: {error.verify_message}. "
                    "Set ca_file to the CA that issued it"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                raise _RetriableFailure(endpoint, self._login.redact(_reason(error), secret_headers)) from error
            status = response.status
            if status in _REDIRECTS and (location := response.getheader("Location")):
                origin, target = self._redirected(endpoint, origin, target, location)
                if status not in _KEEPS_METHOD and method != "GET":
                    raise SchemaRegistryError(
                        f"{endpoint} redirects {method} {path} to {origin} with status {status}, which does not keep "
                        "the method: use the URL that it redirects to"
                    )
                continue
            said = _shortened(self._login.redact(_line(data), secret_headers))
            if status in _RETRIED:
                wait = _retry_after(response)
                reason = f"HTTP {status} {_phrase(status)}" + (f": {said}" if said else "")
                raise _RetriableFailure(
                    endpoint, reason + (f" (it asks to wait {wait:.0f} s)" if wait else ""), status, wait
                )
            return Answer(status, data, response.getheader("X-Registry-ArtifactType"), f"{origin}{target}", said)
        raise SchemaRegistryError(
            f"{endpoint} redirected {method} {path} more than {_MOST_REDIRECTS} times, at last to {origin}"
        )

    def _redirected(self, endpoint: Endpoint, origin: Origin, target: str, location: str) -> tuple[Origin, str]:
        shown = without_userinfo(location)[:_LONGEST_MESSAGE]
        try:
            parts = urlsplit(urljoin(f"{origin}{target}", location))
            there = Origin.of(parts)
        except ValueError:
            raise SchemaRegistryError(f"{endpoint} redirects to {shown!r}, which is not a valid URL") from None
        # No credentials for another host, nor for http instead of https.
        trusted = any(each.origin == there for each in self.endpoints)
        path = parts.path or "/"
        if parts.query:
            path += f"?{parts.query}"
        if not path.isascii() or any(ord(character) <= 0x20 or character == "\x7f" for character in path):
            raise SchemaRegistryError(f"{endpoint} redirects to {shown!r}, which is not a valid URL")
        return Origin(there.scheme, there.host, there.port, trusted), path

    def _exchange(
        self, origin: Origin, method: str, target: str, body: bytes | None, headers: dict[str, str], deadline: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        while True:
            connection, is_reused = self.connections.take(origin)
            try:
                response, data = connection.exchange(method, target, body, headers, deadline)
            except ConnectionError:
                connection.close()
                if not is_reused:
                    raise
                # The server has closed the idle connection: try the next one, at last a new one.
            except BaseException:
                connection.close()
                raise
            else:
                self._keep(connection, response)
                return response, data

    def _keep(self, connection: RegistryConnection, response: http.client.HTTPResponse) -> None:
        if connection.origin.trusted and not response.will_close and response.isclosed():
            self.connections.put_back(connection)
        else:
            connection.close()

    def _context(self, origin: Origin) -> ssl.SSLContext:
        if not origin.trusted:
            return self._tls.context(with_certificate=False)
        if self._given_context is not None:
            return self._given_context
        if self._made_context is None:
            self._made_context = self._tls.context(with_certificate=True)
        return self._made_context

    def _describe(self, failures: list[_RetriableFailure]) -> str:
        last = {str(failure.endpoint): failure.reason for failure in failures}
        return "the schema registry is unavailable: " + "; ".join(f"{url}: {reason}" for url, reason in last.items())

    def _unavailable(self, failures: list[_RetriableFailure]) -> SchemaRegistryError:
        times = f"{len(failures)} attempt{'s' if len(failures) > 1 else ''}"
        error = SchemaRegistryError(
            f"{self._describe(failures)} ({times}). Check that it is running and that the URL is right; "
            "the call can be repeated",
            status=failures[-1].status,
            retriable=True,
        )
        error.__cause__ = failures[-1].__cause__
        return error


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection without a response"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection broke in the middle of the response"
    if isinstance(error, http.client.HTTPException):
        return f"the response is not HTTP ({type(error).__name__})"
    assert isinstance(error, OSError)
    return error.strerror or str(error)[:_LONGEST_MESSAGE]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _line(data: bytes) -> str:
    """The beginning of a body as one printable line. It is longer than what is shown, so that a secret at the end of
    that is complete, and found."""
    text = " ".join(data[:_LONGEST_LINE].decode(errors="replace").split())
    return "".join(character if character.isprintable() else "�" for character in text)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"


def _retry_after(response: http.client.HTTPResponse) -> float:
    """The seconds to wait that the server asks for: a number, or a date."""
    text = (response.getheader("Retry-After") or "").strip()
    if text.isdecimal() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError, OSError):
        return 0.0
