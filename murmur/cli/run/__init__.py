"""`murmur run`: create, publish, amend, void and show a run of one's own."""
