"""Commands of ``dpca``, grouped by noun.

Each command parses its arguments, calls a job and prints the result.
"""
