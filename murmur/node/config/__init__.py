"""Settings from flags, environment and file; from settings the doors, the keys and the device."""
