"""Post-processing of released matrices: refined components, and quality estimates."""
