"""Post-processing of released matrices: refined components, and estimates of their quality."""
