"""The programs that people start: miner.py and validator.py. Only programs live here (docs/architecture.md)."""
