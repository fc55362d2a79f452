"""Joint releases whose sites are parties of their own: their roster, the messages between them, and their services."""
