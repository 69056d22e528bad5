"""Requests of fixed rounds that decode side by side: each known to its end, all added up, many cycles at once."""
