"""`murmur plan`: what a run asks of a machine, stated or measured."""
