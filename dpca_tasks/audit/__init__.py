"""Attack the mechanisms as they run, and prove from the attack's success how little privacy they can have."""
