"""The mechanisms. They read private rows only through the curator; everything else they do is post-processing."""
