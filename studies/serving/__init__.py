"""Studies of serving under load, as functions."""
