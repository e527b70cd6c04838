"""Settings of TLS and SASL: librdkafka's names and Java's.

All consumers have them: `ConsumerConfig` inherits them from here. Where the two clients have different names for one
thing, the other's is among the SYNONYMS. What can be told to be wrong without a broker is told when a consumer is
made: names, contradictions, files that are missing or cannot be read, passwords that do not open them.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError
from ..setting_kinds import (
    dotted,
    one_of,
    parse_flag,
    parse_optional_text,
    parse_text,
    parse_verbatim,
    setting,
)
from .jaas import Login, parse_jaas
from .stores import pem_blocks

log = logging.getLogger(__name__)

MECHANISMS = ("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
_NO_JAVA = "Java classes cannot be run here"


def _mechanism(value: Any) -> str:
    text = parse_text(value).upper()
    if text == "AWS_MSK_IAM":
        raise ValueError("use OAUTHBEARER with sasl.oauthbearer.token.callback: see examples/msk_iam.py")
    if text not in MECHANISMS:
        raise ValueError("must be " + " or ".join(MECHANISMS))
    return text


def _identification(value: Any) -> str:
    text = "" if value is None else parse_text(value).lower()
    if text not in ("https", "", "none"):
        raise ValueError("must be https, or empty to leave host names unchecked")
    return "" if text == "none" else text


def _tls_versions(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else list(value)
    found = tuple(str(item).strip() for item in items if str(item).strip())
    if not found or any(item not in _TLS_VERSIONS for item in found):
        raise ValueError("must be TLSv1.2, TLSv1.3 or both")
    return found


def _store_type(value: Any) -> str | None:
    text = parse_optional_text(value)
    if text is not None and text.upper() not in ("PEM", "PKCS12", "JKS"):
        raise ValueError("must be PEM or PKCS12")
    return None if text is None else text.upper()


def _jaas(value: Any) -> Login | None:
    if isinstance(value, Login):
        return value
    text = parse_optional_text(value)
    return None if text is None else parse_jaas(text)


def _callback(value: Any) -> Callable[[], Any] | None:
    """A function, or where it is: `package.module:function`, for Spark's options and for files."""
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]
    module, colon, name = parse_text(value).partition(":")
    if not colon or not module or not name:
        raise ValueError("must be a function, or package.module:function")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"it is not there: {error}") from None
    if not callable(found):
        raise ValueError("it is not a function")
    return found  # type: ignore[no-any-return]


def _url(value: Any) -> str | None:
    text = parse_optional_text(value)
    if text is None:
        return None
    if not text.lower().startswith(("https://", "http://")):
        raise ValueError("must be an https:// address")
    if not all("\x21" <= char <= "\x7e" for char in text):
        raise ValueError("must be an address without blanks: %20 stands for one")
    try:
        parts = urllib.parse.urlsplit(text)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ValueError("must be an address with a host, and a port of 1 to 65535 if any")
    if "@" in parts.netloc:
        raise ValueError("must be an address without user and password: see sasl.oauthbearer.client.id and .secret")
    return text


_HANDLERS = tuple(
    f"org.apache.kafka.common.security.oauthbearer.{package}OAuthBearerLoginCallbackHandler"
    for package in ("", "secured.")
)


def _handler(value: Any) -> str | None:
    text = parse_optional_text(value)
    if text is not None and text not in _HANDLERS:
        raise ValueError(f"{_NO_JAVA}: use sasl.oauthbearer.token.callback or …token.endpoint.url")
    return text


def _pem(value: Any) -> str | None:
    text = parse_optional_text(value)
    return None if text is None else pem_blocks(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """How to connect, and as whom."""

    security_protocol: str = setting(
        one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        "plaintext",
        "How to connect: PLAINTEXT, SSL (which is TLS), SASL_PLAINTEXT or SASL_SSL.",
    )

    ssl_ca_location: str | None = setting(
        parse_optional_text, None, "Whom to trust: a file or directory of PEM certificates. None: whom the system does."
    )
    ssl_truststore_location: str | None = setting(
        parse_optional_text, None, "Java's name for the same: a PEM or PKCS12 file."
    )
    ssl_truststore_password: str | None = setting(parse_verbatim, None, "Of a PKCS12 truststore.", secret=True)
    ssl_truststore_type: str | None = setting(
        _store_type, None, "PEM or PKCS12. It is seen from the file; JKS is refused, with how to convert it."
    )
    ssl_truststore_certificates: str | None = setting(_pem, None, "The PEM certificates themselves, instead of a file.")
    ssl_certificate_location: str | None = setting(
        parse_optional_text, None, "This client's certificate, and those up to its CA, as a PEM file (mutual TLS)."
    )
    ssl_key_location: str | None = setting(
        parse_optional_text, None, "Its private key as a PEM file. None: in the file of the certificate."
    )
    ssl_key_password: str | None = setting(parse_verbatim, None, "Of the private key.", secret=True)
    ssl_keystore_location: str | None = setting(
        parse_optional_text, None, "Java's name: a PEM or PKCS12 file with both certificate and key."
    )
    ssl_keystore_password: str | None = setting(parse_verbatim, None, "Of a PKCS12 keystore.", secret=True)
    ssl_keystore_type: str | None = setting(_store_type, None, "As ssl.truststore.type.")
    ssl_keystore_certificate_chain: str | None = setting(
        _pem, None, "The PEM certificates themselves, instead of a file; the key may be among them.", secret=True
    )
    ssl_keystore_key: str | None = setting(_pem, None, "The PEM private key itself, instead of a file.", secret=True)
    ssl_endpoint_identification_algorithm: str = setting(
        _identification, "https", "Compare a broker's host name with its certificate. Empty: do not."
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(_tls_versions, _TLS_VERSIONS, "The versions of TLS to speak.")
    ssl_cipher_suites: str | None = setting(
        parse_optional_text, None, "Ciphers of TLS 1.2, by OpenSSL's names with colons between them."
    )
    enable_ssl_certificate_verification: bool = setting(
        parse_flag, True, "Check certificates at all. false: anybody can pretend to be a broker."
    )

    sasl_mechanism: str = setting(
        _mechanism, "GSSAPI", "How to log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI."
    )
    sasl_username: str | None = setting(parse_verbatim, None, "Of PLAIN and SCRAM.")
    sasl_password: str | None = setting(parse_verbatim, None, "Of PLAIN and SCRAM.", secret=True)
    sasl_jaas_config: Login | None = setting(  # noqa: RUF009 - a field
        _jaas, None, "Java's login string, with the user, the password or the client's secret in it.", secret=True
    )
    sasl_kerberos_service_name: str = setting(parse_text, "kafka", "With GSSAPI: the first part of the brokers' names.")
    sasl_kerberos_keytab: str | None = setting(
        parse_optional_text, None, "With GSSAPI: a file with this client's key. None: tickets are there (kinit)."
    )
    sasl_kerberos_principal: str | None = setting(
        parse_optional_text, None, "With GSSAPI: as whom, user@REALM. None: the only one, or the first, there is."
    )
    sasl_oauthbearer_token_callback: Callable[[], Any] | None = setting(  # noqa: RUF009 - a field
        _callback,
        None,
        "With OAUTHBEARER: a function that returns a token (a string, or headrace.OAuthToken), or where it is, as "
        "package.module:function. Called again before a token ends.",
        secret=True,
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        _url, None, "With OAUTHBEARER: where tokens are given for the client's id and secret (OIDC).", secret=True
    )
    sasl_oauthbearer_client_id: str | None = setting(parse_verbatim, None, "The client's id there.")
    sasl_oauthbearer_client_secret: str | None = setting(
        parse_verbatim, None, "The client's secret there.", secret=True
    )
    sasl_oauthbearer_header_urlencode: bool = setting(
        parse_flag, False, "Whether id and secret are URL-encoded before they are sent, as RFC 6749 has it."
    )
    sasl_oauthbearer_scope: str | None = setting(parse_optional_text, None, "What the token is asked for.")
    sasl_oauthbearer_extensions: str | None = setting(
        parse_optional_text, None, "SASL extensions, as name=value,name=value (for Confluent Cloud: logicalCluster=…)."
    )
    sasl_login_callback_handler_class: str | None = setting(
        _handler, None, "Java's OAuthBearerLoginCallbackHandler, which says what is done here anyway. No other."
    )

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("ssl", "sasl_ssl")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in ("sasl_plaintext", "sasl_ssl")


FIELDS = {field.name: field for field in dataclasses.fields(SecuritySettings)}

SYNONYMS = {
    "ssl_ca_pem": "ssl_truststore_certificates",
    "ssl_certificate_pem": "ssl_keystore_certificate_chain",
    "ssl_key_pem": "ssl_keystore_key",
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_oauthbearer_client_credentials_client_id": "sasl_oauthbearer_client_id",
    "sasl_oauthbearer_client_credentials_client_secret": "sasl_oauthbearer_client_secret",
}
"""Names of the other client, librdkafka or Java, for what has a name here."""

FOREIGN = {
    "oauth_cb": "use sasl.oauthbearer.token.callback, a function without arguments",
    "sasl_client_callback_handler_class": f"{_NO_JAVA}: use sasl.oauthbearer.token.callback",
    "sasl_login_class": _NO_JAVA,
    "ssl_engine_factory_class": _NO_JAVA,
    "sasl_kerberos_kinit_cmd": "no kinit is run here: use sasl.kerberos.keytab",
    "ssl_protocol": "use ssl.enabled.protocols",
    "sasl_oauthbearer_method": "it follows from sasl.oauthbearer.token.endpoint.url or …token.callback",
}


def check_security(settings: SecuritySettings) -> None:
    """Looks at them together, and at the files that they name. Raises ConfigError."""
    if settings.uses_tls:
        _one_source(settings, "ssl_ca_location", "ssl_truststore_location", "ssl_truststore_certificates")
        _one_source(settings, "ssl_certificate_location", "ssl_keystore_location", "ssl_keystore_certificate_chain")
        if settings.ssl_key_location and not settings.ssl_certificate_location:
            raise ConfigError(
                "ssl.key.location needs ssl.certificate.location: a key without its certificate is no use"
            )
        if settings.ssl_keystore_key and not settings.ssl_keystore_certificate_chain:
            raise ConfigError("ssl.keystore.key needs ssl.keystore.certificate.chain")
    _warn_of_the_unused(settings)
    if settings.uses_sasl:
        _check_login(settings)
    if settings.uses_tls or settings.uses_sasl:
        from .access import Access

        Access(settings).check()


def _one_source(settings: SecuritySettings, *names: str) -> None:
    given = [dotted(name) for name in names if getattr(settings, name)]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} say the same thing: give one of them")


def _warn_of_the_unused(settings: SecuritySettings) -> None:
    """As in Java's client, what belongs to another protocol does not hurt; but somebody may have forgotten that one."""
    for prefix, used in (("ssl_", settings.uses_tls), ("sasl_", settings.uses_sasl)):
        given = [name for name, field in FIELDS.items() if getattr(settings, name) != field.default]
        found = [name for name in given if name.startswith(prefix)]
        if found and not used:
            log.warning(
                "%s is set but has no effect with security.protocol=%s", dotted(found[0]), settings.security_protocol
            )


_MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
    "Krb5LoginModule": ("GSSAPI",),
    "IAMLoginModule": (),
}


# What of each module is used or makes no difference, and what is as this client does it anyway.
_USED = {
    "PlainLoginModule": {"username", "password"},
    "ScramLoginModule": {"username", "password"},
    "OAuthBearerLoginModule": {"clientId", "clientSecret", "scope"},
    "Krb5LoginModule": {"serviceName", "principal", "useKeyTab", "keyTab", "useTicketCache", "ticketCache", "storeKey"},
}
_AS_IT_IS = {
    "ScramLoginModule": {"tokenauth": "false"},
    "Krb5LoginModule": {"doNotPrompt": "true", "isInitiator": "true", "refreshKrb5Config": "true"},
}
_INSTEAD = {
    "tokenauth": "delegation tokens are not supported",
    "doNotPrompt": "nobody is asked for a password",
    "renewTGT": "with a keytab it is not needed, without one it is kinit's business",
}


def _check_options(login: Login) -> None:
    """Java ignores what it does not know, too; but who writes an option means something by it."""
    for name, value in login.options.items():
        if name in _USED[login.module] or _AS_IT_IS.get(login.module, {}).get(name) == value.lower():
            continue
        if login.module == "OAuthBearerLoginModule" and name.startswith("extension_"):
            continue
        instead = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise ConfigError(f"sasl.jaas.config: {name} of {login.module} has no effect here{instead}")


def _check_login(settings: SecuritySettings) -> None:
    login, mechanism = settings.sasl_jaas_config, settings.sasl_mechanism
    if login is not None:
        if login.module not in _MODULES:
            raise ConfigError(f"sasl.jaas.config: the login module {login.module} is not known here")
        if login.module == "IAMLoginModule":
            raise ConfigError("sasl.jaas.config: for MSK IAM use OAUTHBEARER with a callback: see examples/msk_iam.py")
        if mechanism not in _MODULES[login.module]:
            raise ConfigError(f"sasl.jaas.config has {login.module}, which does not fit sasl.mechanism={mechanism}")
        _check_options(login)
        for option, switch in (("keyTab", "useKeyTab"), ("ticketCache", "useTicketCache")):
            if option in login.options and not _is_on(login.options, switch):
                raise ConfigError(f"sasl.jaas.config: {option} needs {switch}=true")
        if _is_on(login.options, "useKeyTab") and "keyTab" not in login.options:
            raise ConfigError("sasl.jaas.config: useKeyTab=true needs keyTab")
        if settings.sasl_username or settings.sasl_password:
            raise ConfigError("sasl.jaas.config and sasl.username say the same thing: give one of them")
    if mechanism == "PLAIN" and not settings.uses_tls:
        log.warning("sasl.mechanism=PLAIN without TLS sends the password over the network for anybody to read")


def login_options(settings: SecuritySettings) -> Mapping[str, str]:
    """What stands in sasl.jaas.config."""
    return {} if settings.sasl_jaas_config is None else settings.sasl_jaas_config.options


@dataclasses.dataclass(frozen=True, slots=True)
class KerberosLogin:
    """As whom to log in by GSSAPI, and with what."""

    service: str
    principal: str | None
    keytab: str | None
    ticket_cache: str | None


def kerberos_login(settings: SecuritySettings) -> KerberosLogin:
    """Of sasl.jaas.config, as Java reads it, or of sasl.kerberos.*, as librdkafka has it."""
    options = login_options(settings)
    return KerberosLogin(
        options.get("serviceName") or settings.sasl_kerberos_service_name,
        options.get("principal") or settings.sasl_kerberos_principal,
        options.get("keyTab") or settings.sasl_kerberos_keytab,
        options.get("ticketCache"),
    )


def _is_on(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"
