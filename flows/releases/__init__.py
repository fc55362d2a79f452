"""The stages of a release (plan, reserve, compute, publish, report), and its previews, streams and notices."""
