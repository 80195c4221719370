"""Gauntlet: which peers worked honestly, which contribute, which are paid (Templar's Gauntlet, arXiv 2505.21684).

Pure functions and values: no clock, no random source, no input or output, no logging. Time, block hashes, seeds, check
functions and the loss are arguments, so that anyone can replay every judgement (docs/protocol.md sections 4, 5, 6, 9).
Imports protocol and sparseloco, and openskill inside rating.py.
"""
