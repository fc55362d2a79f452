"""Fixtures: a separate state folder for each test, and a signed registry."""

from tests.storage.registry.conftest import made, publishers_home, state

__all__ = ["made", "publishers_home", "state"]
