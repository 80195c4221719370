"""`murmur plan`."""
