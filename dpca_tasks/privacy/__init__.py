"""The trust boundary around private rows: mechanisms get data only through the methods of the curator."""
