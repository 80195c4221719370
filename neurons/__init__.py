"""The programs that people start: miner.py, validator.py and member.py. They configure and hand over; nothing else is
here (docs/architecture.md)."""
