"""Artifacts: the arrays and public facts of a release, stored in a folder named by the digest of its files."""
