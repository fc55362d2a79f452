"""What the board compares with: two libraries, and three published covariance methods, all on public data alone."""
