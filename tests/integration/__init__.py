"""Integration test of the whole pipeline on loopback, with real services; run ``python -m tests.integration``."""

S3_ACCOUNTS = "DPCA_INTEGRATION_S3_ACCOUNTS"
"""Environment variable for the S3 server, JSON that maps each account name to the two parts of its key."""

BUCKET = "dpca"
