"""The layer that runs users' jobs: Prefect flows, Dask clusters, settings, and the ``dpca`` command."""
