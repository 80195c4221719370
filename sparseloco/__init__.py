"""SparseLoCo, the optimizer, and its message: tensors in, tensors or bytes out (arXiv 2508.15706).

Pure: no clock, no random source, no logging, no network. Imports torch, numpy and protocol, nothing else of ours.
"""
