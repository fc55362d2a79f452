"""Orchestration of user jobs, with the cluster, the settings and the ``dpca`` command."""
