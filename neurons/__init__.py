"""The programs that people start: miner.py, validator.py and member.py. Only programs live here (docs/architecture.md)."""
