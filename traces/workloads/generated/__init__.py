"""Workloads that are drawn: processes of arrival, and lengths given or drawn from a recording's requests."""
