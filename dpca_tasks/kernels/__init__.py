"""Compiled, exact array loops without any policy decisions."""
