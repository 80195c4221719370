"""A web page over a run: its nodes' activity, round by round. Read only; never needs a key."""
