"""Joint releases over sites: datasets of one home, or the parties of a roster with their messages and services."""
