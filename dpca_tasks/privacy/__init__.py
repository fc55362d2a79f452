"""The trust boundary: the gate, the ways out that pass it, and the curator that mechanisms call."""
