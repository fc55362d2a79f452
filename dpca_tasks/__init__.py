"""Differentially private PCA: exact sums over private rows, noised once, and what can be made of them."""
