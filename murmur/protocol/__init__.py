"""The rules that every node must agree on: types, the run's spec, clock, layout, messages and the two ports to the
outside.

Standard library and pydantic only. Nothing here reads a clock, a random source, a file or the network, so that anyone
can replay every rule (docs/protocol.md).
"""
