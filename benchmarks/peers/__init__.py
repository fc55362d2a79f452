"""What peers do, in an environment of their own, asked over a pipe."""
