"""What a release leaves for its consumers: arrays and public facts, in files addressed by their digest."""
