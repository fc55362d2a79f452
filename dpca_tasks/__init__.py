"""Differentially private PCA: exact sums over private rows, to which noise is added once."""
