"""The publisher's side of the registry: names, signatures, and what a restore changes."""
