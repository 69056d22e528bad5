"""Fitting to recordings what policies have to know beforehand; see `policies.learned`."""
