"""Web pages of releases and budgets, served or written as a static site."""
