"""A node's reports of itself: events, metrics, and its log line for each round."""
