"""Sums over the data of several owners (sites), who send masked messages; the masks cancel in the total."""
