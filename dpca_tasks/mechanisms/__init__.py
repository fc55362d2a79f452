"""Mechanisms, which read private rows only through the curator; all other computation is post-processing."""
