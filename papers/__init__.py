"""Published and expected numbers, computed again and checked: one module a paper, run by ``python -m papers NAME``."""
