"""What a node says of itself: events, metrics, and the line that its log has for each round."""
