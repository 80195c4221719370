"""Bytes that move between nodes: the Bucket over S3, sealing, publish and gather, uploads that start before
their object is whole, resumable downloads, the mirror.

Knows nothing of the chain, of tensors or of scores: it returns raw bytes and what servers claim, and lets a function
given by the caller say which bytes are the right ones (docs/protocol.md sections 3, 4, 6, 8 and 10).
"""
