"""`murmur plan`: a run's requirements on a machine, stated or measured."""
