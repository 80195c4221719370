"""Hypothesis for the whole suite: the same cases every time and no deadline, so that a failure on one machine is a
failure on all, and a busy machine fails nothing."""

from hypothesis import settings

settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")
