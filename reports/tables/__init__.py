"""Figures as tables for a terminal of any width."""
