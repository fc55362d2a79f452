"""Schema migrations, which run when a database is opened."""
