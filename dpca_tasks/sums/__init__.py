"""Exact sums over blocks, without any noise: the same bits for any partition, order and number of workers."""
