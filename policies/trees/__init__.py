"""Policies that draft token trees."""
