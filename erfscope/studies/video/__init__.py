"""Studies of nets that see clips."""
