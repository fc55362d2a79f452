"""The peers' methods, which run in a separate environment and receive requests over a pipe."""
