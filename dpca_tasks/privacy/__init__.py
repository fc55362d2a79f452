"""The trust boundary: the gate, and the curator, whose methods are the ways out that pass it."""
