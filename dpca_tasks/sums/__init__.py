"""Exact sums over blocks, without noise, with the same bits for any partition, order and number of workers."""
