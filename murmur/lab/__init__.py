"""What tries a run, or breaks it: a development chain, a network on one machine, modelled time, known attacks."""
