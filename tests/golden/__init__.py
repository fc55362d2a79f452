"""Golden homes: one home of every released version, on both databases, which later versions must open and continue."""
