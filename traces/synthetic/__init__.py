"""Recordings whose acceptance is asked for, to study policies where the truth is known."""
