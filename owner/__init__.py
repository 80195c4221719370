"""What the owner of a run does: draft its spec, make theta_0, publish both, amend them."""
