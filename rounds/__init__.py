"""What a miner and a validator do, round by round. The programs that people start are in neurons/."""
