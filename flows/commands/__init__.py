"""The nouns of the ``dpca`` command, one module each. A command parses, calls and prints."""
