"""Joint releases over sites, which are datasets of one home or the parties of a roster."""
