"""A node's events in the trackers that people of this field look at, by a process of its own."""
