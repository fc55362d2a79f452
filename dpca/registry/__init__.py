"""Published artifacts by name and version."""

from dpca.registry.reader import Registry

__all__ = ["Registry"]
