"""Artifacts: the arrays and public facts of a release for its consumers, in files addressed by their digest."""
