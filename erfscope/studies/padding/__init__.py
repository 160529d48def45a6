"""Studies of what padding tells a net of positions."""
