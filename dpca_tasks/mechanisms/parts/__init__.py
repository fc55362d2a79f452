"""What mechanisms are assembled from. A part is shared by two mechanisms or more, and is none itself."""
