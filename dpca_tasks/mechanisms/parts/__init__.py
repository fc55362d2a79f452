"""Parts that two or more mechanisms share; none is a mechanism itself."""
