"""Object storage between nodes: the Bucket over S3, sealing, publishing and gathering, early multipart uploads,
resumable downloads and the validator's mirror.

Knows nothing of the chain, tensors or scores. It returns raw bytes and the server's unverified metadata; a function
given by the caller decides which bytes are valid (docs/protocol.md sections 3, 4, 6, 8 and 10).
"""
