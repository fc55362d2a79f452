"""Publisher's side of the registry: published names, signatures, and recovery after a restore."""
