"""Simulation of whole networks of real nodes in one process on one modelled clock: any interleaving by seed, thousands
of rounds."""
