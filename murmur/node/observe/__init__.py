"""Reading a run from outside, without a key: its current state, its history, the inputs of an audit."""
