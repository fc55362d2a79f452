"""Orchestration: one file a user job, the cluster, the settings and the ``dpca`` command."""
