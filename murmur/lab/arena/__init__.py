"""The arena: the real gauntlet and sparseloco code against every known attack, over a cheap model, in one process.

A run is a pure function of its scenario: same seed, same result. It has no network, no chain and no files;
murmur/lab/arena/stage.py lists the substitutes. A package of the same floor as neurons/: it may import protocol,
sparseloco, gauntlet and storage's sealing, and only the console command imports it.
"""
