"""The trust boundary: the gate, the ways out that stand on it, and the curator that mechanisms ask."""
