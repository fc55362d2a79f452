"""Keyed randomness on the grid: a stream of random words, the distributions made of it, and their integer noise."""
