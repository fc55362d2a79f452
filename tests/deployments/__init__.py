"""Manifests, checked by the published schemas and by this project's own rules; no engine runs here."""
