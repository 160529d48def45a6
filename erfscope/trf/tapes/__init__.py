"""What a forward pass does, noted operation by operation while it runs."""
