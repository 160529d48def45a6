"""Studies of relations between objects of a scene."""
