"""A node as a process: assembly from its configuration, log, first line and exit status."""
