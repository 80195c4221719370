"""The faults of `murmur localnet --fault`, and how an honest network classifies each."""

FAULTS = {
    "garbage": "valid envelope and key, random records: MALFORMED",
    "wrongkey": "envelope signed with a foreign key: UNSIGNED",
    "unrevealed": "never publishes its key: UNREVEALED",
    "badkey": "publishes a key that is not the sealing key: BAD_KEY",
    "late": "commits after the commit deadline: LATE",
    "silent": "does nothing: MISSING",
    "oversized": "an object larger than the run prescribes: WRONG_SIZE",
    "huge": "values a thousand times too large: NORM",
    "desynced": "trains from another theta: OUT_OF_SYNC",
    "copycat": "re-posts another's payload of the round before: COPY",
    "noise": "random content at an honest norm: out by score",
    "lazy": "trains on pages that it was not assigned: out by proof",
    "thin": "trains on a quarter of its sequences: unpaid once its steps were repeated",
}
"""kind -> behaviour: outcome."""
