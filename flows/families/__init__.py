"""Families of releases, from request to artifact, without orchestrator and cluster."""
