"""Artifacts: the arrays and public facts of a release, in files addressed by their digest."""
