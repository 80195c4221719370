"""The console command: a module or a folder for each subcommand. It asks, calls and prints; what it calls lives
elsewhere."""
