"""Streams: one noisy release per tick (period), under one guarantee for all ticks, and estimates from the releases."""
