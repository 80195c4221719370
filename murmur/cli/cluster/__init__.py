"""`murmur cluster`: a run among members who trust each other, over one bucket."""
