"""Studies of attention and pooling on graphs."""
