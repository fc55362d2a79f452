"""Settings shared by all tests: examples are the same in every run, and no test is a stopwatch."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")
