"""The programs that people start: miner.py, validator.py and member.py. They call the console command's modules."""
