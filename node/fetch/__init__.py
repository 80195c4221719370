"""Getting objects from buckets: where a copy may be, sealed payloads, validators' reports."""
