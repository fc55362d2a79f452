"""Families of releases: from a request to its mechanism, plan and artifact, without orchestrator and cluster."""
