"""The ways out of the trust boundary, one a file: see the table of `dpca_tasks.privacy.gate`."""
