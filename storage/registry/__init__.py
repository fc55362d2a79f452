"""Published artifacts by name and version."""

from storage.registry.reader import Registry

__all__ = ["Registry"]
