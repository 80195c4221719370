"""From flags, environment and file to settings, and from settings to the doors, the keys and the device."""
