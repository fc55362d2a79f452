"""Pages that show what was released, and what is left of each budget: served, or written as a static site."""
