"""The actions of a run's owner: draft its spec, make theta_0, publish both, amend them."""
