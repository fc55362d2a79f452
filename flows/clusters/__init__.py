"""The Dask cluster of a run: how it is reached or started, and how both sides prove who they are."""
