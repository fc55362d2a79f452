"""Joint releases over datasets of one home, or over the parties of a roster with their messages and services."""
