"""Streams: releases over time whose noise covers all ticks together, and estimates from the released answers."""
