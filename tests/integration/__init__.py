"""The whole pipeline on loopback, with every part real; run it with ``python -m tests.integration``."""

S3_ACCOUNTS = "DPCA_INTEGRATION_S3_ACCOUNTS"
"""An environment variable of JSON for the S3 server: the two parts of each account's key, by account name."""

BUCKET = "dpca"
