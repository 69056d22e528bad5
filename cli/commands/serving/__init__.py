"""Commands of serving under load."""
