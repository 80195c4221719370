"""`murmur cluster`: a run among people who trust each other, over one bucket."""
