"""Differentially private PCA from exact sums over private rows with noise added once."""
