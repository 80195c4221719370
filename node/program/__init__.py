"""A node as a process: assembled from its configuration, and run with its log, first line and exit status."""
