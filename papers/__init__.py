"""Programs that repeat experiments of papers and compare the numbers; run one with ``python -m papers NAME``."""
