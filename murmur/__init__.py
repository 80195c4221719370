"""The console command `murmur`."""
