"""Publisher's side of the registry, with published names, signatures, and recovery after a restore."""
