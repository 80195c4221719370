"""The arena: the real gauntlet and sparseloco code against every attack we know, over a cheap model, in one process.

A run is a pure function of its scenario: same seed, same result. It has no network, no chain and no files; what stands
for them is said in arena/stage.py. Stands beside neurons/: it may import protocol, sparseloco, gauntlet and storage's
sealing, and nothing imports it but the console command.
"""
