"""What surrounds a command while it runs: signals, limits, output."""
