"""Mechanisms; they read private rows only through the curator, and all their other computation is post-processing."""
