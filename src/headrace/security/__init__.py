"""How a client gets into a cluster: TLS, SASL, and the settings of both.

    settings     the names, their checks and their contradictions
    jaas         Java's login strings
    stores       certificates and keys, as PEM or PKCS12
    tls          the TLS context, made again when its files change
    exchanges    PLAIN, OAUTHBEARER: what is said; no I/O
    scram        SCRAM-SHA-256 and -512: the same
    kerberos     GSSAPI, with an extra
    tokens       where OAUTHBEARER's tokens come from
    access       all of it, as a connection asks for it
    librdkafka   the same settings for a producer of confluent-kafka's

Whatever is secret is kept in fields that no repr shows, and no message here contains it.
"""
