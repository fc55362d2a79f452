"""Private rows become bounded integer records here, and nowhere else."""
