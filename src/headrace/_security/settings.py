"""The settings for TLS and SASL, with librdkafka's and Java's names.

All clients have them: `ClientConfig` inherits from `SecuritySettings`. Where the two clients use different names for
the same setting, SYNONYMS contains the other name. Everything that can be checked without a broker is checked when a
client is created: names, contradictions, missing or unreadable files, wrong passwords for them.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._parsers import dotted, one_of, parse_flag, parse_optional_text, parse_text, parse_verbatim, setting
from ..errors import ConfigError

if TYPE_CHECKING:
    from .jaas import Login

log = logging.getLogger(__name__)

MECHANISMS = ("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")
_TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
_NO_JAVA = "headrace cannot run Java classes"


def _mechanism(value: Any) -> str:
    text = parse_text(value).upper()
    if text not in MECHANISMS:
        raise ValueError("must be " + " or ".join(MECHANISMS))
    return text


def _identification(value: Any) -> str:
    text = "" if value is None else parse_text(value).lower()
    if text not in ("https", "", "none"):
        raise ValueError("must be https, or empty to disable the check of host names")
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
    if value is None:
        return None
    from .jaas import Login, parse_jaas

    if isinstance(value, Login):
        return value
    text = parse_optional_text(value)
    return None if text is None else parse_jaas(text)


def _callback(value: Any) -> Callable[[], Any] | None:
    """A function, or its location as `package.module:function`, for Spark options and files."""
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]
    module, colon, name = parse_text(value).partition(":")
    if not colon or not module or not name:
        raise ValueError("must be a function, or package.module:function")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the function cannot be imported: {error}") from None
    if not callable(found):
        raise ValueError("must name a function")
    return found  # type: ignore[no-any-return]


def _url(value: Any) -> str | None:
    text = parse_optional_text(value)
    if text is None:
        return None
    if not text.lower().startswith(("https://", "http://")):
        raise ValueError("must be an https:// URL")
    if not all("\x21" <= char <= "\x7e" for char in text):
        raise ValueError("must be a URL without blanks and non-ASCII characters: percent-encode them")
    import urllib.parse

    try:
        parts = urllib.parse.urlsplit(text)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ValueError("must be a URL with a host, and with a port from 1 to 65535 if it has one")
    if "@" in parts.netloc:
        raise ValueError(
            "must be a URL without user and password: use sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"
        )
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


def _client_handler(value: Any) -> str | None:
    text = parse_optional_text(value)
    if text is not None and text != "software.amazon.msk.auth.iam.IAMClientCallbackHandler":
        raise ValueError(f"{_NO_JAVA}: use sasl.oauthbearer.token.callback")
    return text


def _pem(value: Any) -> str | None:
    text = parse_optional_text(value)
    if text is None:
        return None
    from .stores import pem_blocks

    return pem_blocks(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """The settings for encryption and authentication."""

    security_protocol: str = setting(
        one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        "plaintext",
        "How to connect: PLAINTEXT, SSL (which is TLS), SASL_PLAINTEXT or SASL_SSL.",
    )

    ssl_ca_location: str | None = setting(
        parse_optional_text,
        None,
        "A file or directory with the PEM certificates of trusted CAs. Default: the system's CAs.",
    )
    ssl_truststore_location: str | None = setting(
        parse_optional_text, None, "Java's name for trusted CAs: a PEM or PKCS12 file."
    )
    ssl_truststore_password: str | None = setting(
        parse_verbatim, None, "The password of a PKCS12 truststore.", secret=True
    )
    ssl_truststore_type: str | None = setting(
        _store_type,
        None,
        "PEM or PKCS12. The type is detected from the file. A JKS file raises an error that says how to convert it.",
    )
    ssl_truststore_certificates: str | None = setting(
        _pem, None, "The PEM certificates of trusted CAs as text, instead of a file."
    )
    ssl_certificate_location: str | None = setting(
        parse_optional_text, None, "This client's certificate chain as a PEM file, for mutual TLS."
    )
    ssl_key_location: str | None = setting(
        parse_optional_text,
        None,
        "This client's private key as a PEM file. Default: the key is in the certificate's file.",
    )
    ssl_key_password: str | None = setting(parse_verbatim, None, "The password of the private key.", secret=True)
    ssl_keystore_location: str | None = setting(
        parse_optional_text, None, "Java's name for certificate and key: a PEM or PKCS12 file that contains both."
    )
    ssl_keystore_password: str | None = setting(parse_verbatim, None, "The password of a PKCS12 keystore.", secret=True)
    ssl_keystore_type: str | None = setting(_store_type, None, "PEM or PKCS12, like ssl.truststore.type.")
    ssl_keystore_certificate_chain: str | None = setting(
        _pem, None, "The PEM certificate chain as text, instead of a file. It may include the key.", secret=True
    )
    ssl_keystore_key: str | None = setting(_pem, None, "The PEM private key as text, instead of a file.", secret=True)
    ssl_endpoint_identification_algorithm: str = setting(
        _identification, "https", "Check that a broker's certificate contains its host name. Empty disables the check."
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(_tls_versions, _TLS_VERSIONS, "The allowed versions of TLS.")
    ssl_cipher_suites: str | None = setting(
        parse_optional_text, None, "The allowed ciphers of TLS 1.2: OpenSSL's names, separated by colons."
    )
    enable_ssl_certificate_verification: bool = setting(
        parse_flag, True, "Verify the brokers' certificates. With false, anyone can impersonate a broker."
    )

    sasl_mechanism: str = setting(
        _mechanism, "GSSAPI", "How to log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI or AWS_MSK_IAM."
    )
    sasl_username: str | None = setting(parse_verbatim, None, "The user name for PLAIN and SCRAM.")
    sasl_password: str | None = setting(parse_verbatim, None, "The password for PLAIN and SCRAM.", secret=True)
    sasl_jaas_config: Login | None = setting(  # noqa: RUF009 - a field
        _jaas, None, "Java's login string, which contains the user and the password or client secret.", secret=True
    )
    sasl_kerberos_service_name: str = setting(
        parse_text, "kafka", "With GSSAPI: the service name, which is the first part of the brokers' principals."
    )
    sasl_kerberos_keytab: str | None = setting(
        parse_optional_text,
        None,
        "With GSSAPI: the keytab file with this client's key. Default: use the tickets of kinit.",
    )
    sasl_kerberos_principal: str | None = setting(
        parse_optional_text,
        None,
        "With GSSAPI: the principal of this client, user@REALM. Default: the first one of the keytab or ticket cache.",
    )
    sasl_oauthbearer_token_callback: Callable[[], Any] | None = setting(  # noqa: RUF009 - a field
        _callback,
        None,
        "With OAUTHBEARER: a function that returns a token (a string or a headrace.OAuthToken), or its location as "
        "package.module:function. It is called again before the token expires.",
        secret=True,
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        _url, None, "With OAUTHBEARER: the URL that issues tokens for a client id and secret (OIDC).", secret=True
    )
    sasl_oauthbearer_client_id: str | None = setting(parse_verbatim, None, "The client id for the token endpoint.")
    sasl_oauthbearer_client_secret: str | None = setting(
        parse_verbatim, None, "The client secret for the token endpoint.", secret=True
    )
    sasl_oauthbearer_header_urlencode: bool = setting(
        parse_flag, False, "URL-encode the client id and secret before sending them, as RFC 6749 specifies."
    )
    sasl_oauthbearer_scope: str | None = setting(parse_optional_text, None, "The scope to request for the token.")
    sasl_oauthbearer_extensions: str | None = setting(
        parse_optional_text, None, "SASL extensions, as name=value,name=value (for Confluent Cloud: logicalCluster=…)."
    )
    sasl_login_callback_handler_class: str | None = setting(
        _handler,
        None,
        "Accepts only Java's OAuthBearerLoginCallbackHandler, which has no effect: headrace always does what it does.",
    )
    sasl_client_callback_handler_class: str | None = setting(
        _client_handler,
        None,
        "Accepts only IAMClientCallbackHandler of Amazon MSK's library for Java, which has no effect: "
        "sasl.mechanism=AWS_MSK_IAM is enough.",
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
"""Other names of librdkafka or Java for these settings."""

FOREIGN = {
    "oauth_cb": "use sasl.oauthbearer.token.callback, a function without arguments",
    "sasl_login_class": _NO_JAVA,
    "ssl_engine_factory_class": _NO_JAVA,
    "sasl_kerberos_kinit_cmd": "headrace does not run kinit: use sasl.kerberos.keytab",
    "ssl_protocol": "use ssl.enabled.protocols",
    "sasl_oauthbearer_method": "set sasl.oauthbearer.token.endpoint.url or …token.callback, which select the method",
}


def check_security(settings: SecuritySettings) -> None:
    """Check the settings against each other, and read the files that they name. Raises ConfigError."""
    if settings.uses_tls:
        _one_source(settings, "ssl_ca_location", "ssl_truststore_location", "ssl_truststore_certificates")
        _one_source(settings, "ssl_certificate_location", "ssl_keystore_location", "ssl_keystore_certificate_chain")
        if settings.ssl_key_location and not settings.ssl_certificate_location:
            raise ConfigError(
                "ssl.key.location needs ssl.certificate.location: a key cannot be used without its certificate"
            )
        if settings.ssl_keystore_key and not settings.ssl_keystore_certificate_chain:
            raise ConfigError("ssl.keystore.key needs ssl.keystore.certificate.chain")
    _warn_about_unused(settings)
    if settings.uses_sasl:
        _check_login(settings)
    if settings.uses_tls or settings.uses_sasl:
        from .access import Access

        Access(settings).check()


def _one_source(settings: SecuritySettings, *names: str) -> None:
    given = [dotted(name) for name in names if getattr(settings, name)]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} set the same thing: set only one of them")


def _warn_about_unused(settings: SecuritySettings) -> None:
    """Log a warning for settings that security.protocol does not use. Like Java's client, headrace accepts them; but
    the user may have forgotten to set security.protocol."""
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
    "IAMLoginModule": ("AWS_MSK_IAM",),
}


# The options of each login module that are used or make no difference, and the values that match headrace's behavior.
_USED = {
    "PlainLoginModule": {"username", "password"},
    "ScramLoginModule": {"username", "password"},
    "OAuthBearerLoginModule": {"clientId", "clientSecret", "scope"},
    "IAMLoginModule": {"awsProfileName"},
    "Krb5LoginModule": {"serviceName", "principal", "useKeyTab", "keyTab", "useTicketCache", "ticketCache", "storeKey"},
}
_FIXED_VALUES = {
    "IAMLoginModule": {"awsDebugCreds": "false"},
    "ScramLoginModule": {"tokenauth": "false"},
    "Krb5LoginModule": {"doNotPrompt": "true", "isInitiator": "true", "refreshKrb5Config": "true"},
}
_ROLE = "set role_arn in a profile of ~/.aws/config, and name the profile as awsProfileName"
_REASONS = {
    "awsRoleArn": _ROLE,
    "awsRoleSessionName": _ROLE,
    "awsStsRegion": _ROLE,
    "tokenauth": "delegation tokens are not supported",
    "doNotPrompt": "headrace never prompts for a password",
    "renewTGT": "it is not needed with a keytab; without one, renew tickets with kinit",
}


def _check_options(login: Login) -> None:
    """Reject options without effect. Java ignores unknown options, but the user expects an option to do something."""
    for name, value in login.options.items():
        if name in _USED[login.module] or _FIXED_VALUES.get(login.module, {}).get(name) == value.lower():
            continue
        if login.module == "OAuthBearerLoginModule" and name.startswith("extension_"):
            continue
        reason = f": {_REASONS[name]}" if name in _REASONS else ""
        raise ConfigError(f"sasl.jaas.config: {name} of {login.module} is not supported{reason}")


def _check_login(settings: SecuritySettings) -> None:
    login, mechanism = settings.sasl_jaas_config, settings.sasl_mechanism
    if login is not None:
        if login.module not in _MODULES:
            raise ConfigError(f"sasl.jaas.config: the login module {login.module} is not supported")
        if mechanism not in _MODULES[login.module]:
            raise ConfigError(f"sasl.jaas.config has {login.module}, which does not match sasl.mechanism={mechanism}")
        _check_options(login)
        for option, switch in (("keyTab", "useKeyTab"), ("ticketCache", "useTicketCache")):
            if option in login.options and not _is_on(login.options, switch):
                raise ConfigError(f"sasl.jaas.config: {option} needs {switch}=true")
        if _is_on(login.options, "useKeyTab") and "keyTab" not in login.options:
            raise ConfigError("sasl.jaas.config: useKeyTab=true needs keyTab")
        if settings.sasl_username or settings.sasl_password:
            raise ConfigError("sasl.jaas.config and sasl.username set the same thing: set only one of them")
    if mechanism == "PLAIN" and not settings.uses_tls:
        log.warning("sasl.mechanism=PLAIN without TLS sends the password unencrypted over the network")


def login_options(settings: SecuritySettings) -> Mapping[str, str]:
    """The options in sasl.jaas.config."""
    return {} if settings.sasl_jaas_config is None else settings.sasl_jaas_config.options


@dataclasses.dataclass(frozen=True, slots=True)
class KerberosLogin:
    """The identity and credentials for GSSAPI."""

    service: str
    principal: str | None
    keytab: str | None
    ticket_cache: str | None


def kerberos_login(settings: SecuritySettings) -> KerberosLogin:
    """The login from Java's sasl.jaas.config, or from librdkafka's sasl.kerberos.*."""
    options = login_options(settings)
    return KerberosLogin(
        options.get("serviceName") or settings.sasl_kerberos_service_name,
        options.get("principal") or settings.sasl_kerberos_principal,
        options.get("keyTab") or settings.sasl_kerberos_keytab,
        options.get("ticketCache"),
    )


def _is_on(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"
