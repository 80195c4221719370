"""Reading a run from outside, without a key: its state now, its history, the inputs of an audit."""
