"""Amazon MSK with IAM: a signed URL is the token.

    pip install headrace aws-msk-iam-sasl-signer-python
    AWS_REGION=eu-central-1 python examples/msk_iam.py b-1.example.kafka.eu-central-1.amazonaws.com:9098 orders

The signer finds credentials where AWS's other libraries do: the environment, a profile, the role of an instance or of a
pod. In Spark, put `token` into a module that driver and executors have, and name it:

    .option("kafka.sasl.oauthbearer.token.callback", "my_package.msk_iam:token")
"""

from __future__ import annotations

import os
import sys

from headrace import Consumer, OAuthToken


def token() -> OAuthToken:
    """Called when a login is needed and the last token has used up most of its life (15 minutes)."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    value, expires_at_ms = MSKAuthTokenProvider.generate_auth_token(os.environ["AWS_REGION"])
    return OAuthToken(value, expires_at_ms / 1000)


def settings(servers: str) -> dict[str, object]:
    """What a consumer needs. MSK's certificates are Amazon's, which systems trust."""
    return {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.callback": token,
        "group.id": "msk-example",
        "auto.offset.reset": "earliest",
    }


def main() -> None:
    servers, topic = sys.argv[1:]
    with Consumer(settings(servers)) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            print(record.partition, record.offset, record.value)


if __name__ == "__main__":
    main()
