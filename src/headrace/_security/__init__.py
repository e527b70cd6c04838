"""Authentication and encryption: TLS, SASL, and their settings.

    settings     the settings, and checks for contradictions between them
    jaas         Java's sasl.jaas.config
    stores       certificates and keys, in PEM or PKCS12 files
    tls          the TLS context, recreated when its files change
    exchanges    the messages of PLAIN and OAUTHBEARER; no I/O
    scram        the messages of SCRAM-SHA-256 and SCRAM-SHA-512; no I/O
    kerberos     GSSAPI, which needs an extra
    msk_iam      signed tokens for Amazon MSK, which need an extra
    tokens       fetches and caches the tokens of OAUTHBEARER
    access       what a connection uses of all this

Secrets are in fields that no repr shows, and no error or log message contains them.
"""
