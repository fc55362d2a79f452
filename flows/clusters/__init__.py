"""Start of, and connection to, the Dask cluster of a run, with mutual authentication by certificates."""
