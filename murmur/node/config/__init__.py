"""Settings from flags, environment and file; from settings the ports, the keys and the device."""
