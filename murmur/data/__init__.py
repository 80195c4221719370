"""Tokenised text: built, joined, and read by its index."""
