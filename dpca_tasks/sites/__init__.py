"""Sums over several owners of data, with rosters of sites and masks that cancel in the total."""
