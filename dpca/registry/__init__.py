"""The registry: published artifacts with names, versions and aliases."""

from dpca.registry.reader import Registry

__all__ = ["Registry"]
