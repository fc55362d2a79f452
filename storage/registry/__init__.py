"""Publisher's side of the registry, with names, signatures and recovery after a restore."""
