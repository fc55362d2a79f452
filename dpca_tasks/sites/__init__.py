"""Sums over several owners of data: who takes part, masks that add up to zero, and the opening of a total."""
