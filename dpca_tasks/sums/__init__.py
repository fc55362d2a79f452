"""Exact sums over blocks, without noise: the same bits for any partition, order and number of workers."""
