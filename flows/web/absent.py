"""The error of an address that names nothing: its text is shown, and so holds no path and no number that is stored."""


class Absent(Exception):
    """There is no such page."""
