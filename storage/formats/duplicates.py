"""What becomes of several values of one row and column, by name: those who declare it need not load what does it."""

DUPLICATES = ("sum", "mean", "last", "refuse")
