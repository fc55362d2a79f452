"""Mechanisms over several sites: each holds rows of its own, and only noised or masked sums leave it."""
