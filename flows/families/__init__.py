"""Families of releases: what a request of each asks for, and what its result becomes. No orchestrator, no cluster."""
