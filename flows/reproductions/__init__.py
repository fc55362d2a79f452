"""Published and expected numbers, computed again and checked."""
