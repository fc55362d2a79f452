"""One home of every released version, on both databases, which every later version must open and continue."""
