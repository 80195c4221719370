"""Fetching objects from buckets: sources of copies, sealed payloads, validators' reports."""
