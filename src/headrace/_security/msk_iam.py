"""AWS_MSK_IAM: logins at Amazon MSK with AWS credentials, through the package `botocore`, which is an extra.

    region        from the broker's host name, else from AWS_REGION, the environment or the profile
    credentials   botocore's chain: environment, profile, web identity, container, instance. They are read again for
                  each token; botocore refreshes temporary ones ten minutes before they expire, or earlier
    token         a URL with a signature of the action kafka-cluster:Connect, valid for 15 minutes

On its port for IAM, MSK accepts the signature either as Java's mechanism AWS_MSK_IAM or as a token of OAUTHBEARER.
headrace sends the second form, which is the one of AWS's signers for all languages but Java.
"""

from __future__ import annotations

import base64
import importlib
import os
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from .._version import __version__
from ..errors import AuthenticationError, ConfigError, NetworkError
from .exchanges import Exchange, OAuthBearer
from .settings import SecuritySettings, login_options
from .tokens import OAuthToken, Tokens, run_in_thread, with_timeout

_VALID_FOR = 900  # seconds
# The credentials that sign a token are valid for ten minutes at least, which may be less than the token itself.
_USED_FOR = 600
_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\.?", re.IGNORECASE)


def msk_exchange(settings: SecuritySettings) -> Callable[[str], Awaitable[Exchange]]:
    """Raises ConfigError if the package is not installed, or the profile does not exist."""
    try:
        botocore = importlib.import_module("botocore.session")
    except ImportError:
        raise ConfigError(
            "sasl.mechanism=AWS_MSK_IAM needs the package botocore: pip install 'headrace[aws]'"
        ) from None
    signer = TokenSigner(botocore.Session(profile=login_options(settings).get("awsProfileName")))
    signer.check_profile()
    tokens: dict[str, Tokens] = {}

    async def begin(host: str) -> Exchange:
        region = signer.region_of(host)
        if region not in tokens:

            async def ask() -> OAuthToken:
                return await run_in_thread(lambda: signer.sign(region))

            tokens[region] = Tokens(with_timeout(ask))
        return OAuthBearer((await tokens[region].get()).value, {})

    return begin


class TokenSigner:
    """Signs tokens with the credentials of one botocore session."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def check_profile(self) -> None:
        """Raises ConfigError."""
        from botocore.exceptions import BotoCoreError

        try:
            self._session.get_scoped_config()
        except BotoCoreError as error:
            raise ConfigError(f"sasl.mechanism=AWS_MSK_IAM: {error}") from None

    def region_of(self, host: str) -> str:
        """The region of a broker. Raises AuthenticationError if it is unknown."""
        if (match := _HOST.search(host)) is not None:
            return match[1].lower()
        region = os.environ.get("AWS_REGION") or self._session.get_config_variable("region")
        if not region:
            raise AuthenticationError(
                f"cannot tell the AWS region of {host}: set the environment variable AWS_REGION", step="token"
            )
        return str(region)

    def sign(self, region: str) -> OAuthToken:
        """A new token. It may block, because the chain of credentials may ask a server."""
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest

        credentials = self._credentials()
        url = f"https://kafka.{region}.amazonaws.com/"
        request = AWSRequest(method="GET", url=url, params={"Action": "kafka-cluster:Connect"})
        SigV4QueryAuth(credentials, "kafka-cluster", region, expires=_VALID_FOR).add_auth(request)
        # The broker logs it. It is not signed.
        signed = f"{request.url}&User-Agent=headrace%2F{__version__}"
        token = base64.urlsafe_b64encode(signed.encode()).decode().rstrip("=")
        return OAuthToken(token, time.time() + _USED_FOR)

    def _credentials(self) -> Any:
        try:
            found = self._session.get_credentials()
            frozen = None if found is None else found.get_frozen_credentials()
        except Exception as error:  # noqa: BLE001  # the errors of botocore have no common class
            raise _error_of(error) from None
        if frozen is None or not frozen.access_key or not frozen.secret_key:
            raise AuthenticationError(
                "found no AWS credentials: set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run with "
                "a role (of an instance, a container or a web identity)",
                step="token",
            )
        return frozen


def _error_of(error: Any) -> AuthenticationError | NetworkError:
    """The error of botocore without its text, which may contain the response of a server, and so the credentials."""
    from botocore.exceptions import HTTPClientError, MetadataRetrievalError
    from botocore.parsers import ResponseParserError

    response = getattr(error, "response", None) or {}  # of STS or SSO
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code, provider = response.get("Error", {}).get("Code"), getattr(error, "kwargs", {}).get("provider")
    details = "".join(f", {detail}" for detail in (code, provider) if detail)
    text = (
        f"cannot get AWS credentials ({type(error).__name__}{details}): `aws sts get-caller-identity` shows the reason"
    )
    unreachable = (HTTPClientError, MetadataRetrievalError, ResponseParserError)
    causes = (error, error.__cause__, error.__context__)
    if status == 429 or status >= 500 or any(isinstance(each, unreachable) for each in causes):
        return NetworkError(text)
    return AuthenticationError(text, step="token")
