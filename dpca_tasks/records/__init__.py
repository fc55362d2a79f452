"""The conversion of private rows to bounded integer records, which happens nowhere else."""
