"""The ways out of the trust boundary, one per file: see the table of `dpca_tasks.privacy.gate`."""
