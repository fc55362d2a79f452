"""Streams, with one noisy answer per tick (period) and one guarantee for all ticks, and estimates from the answers."""
