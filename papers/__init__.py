"""Reproductions of published and expected numbers: one module per paper, run by ``python -m papers NAME``."""
