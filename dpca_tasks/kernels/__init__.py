"""Compiled loops on arrays: exact, and without any policy of their own."""
