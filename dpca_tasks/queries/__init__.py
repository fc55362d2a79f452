"""The only code that looks at private rows: sums over records of bounded integer contributions."""
