"""What SpecRouter estimates as verdicts come in: agreement, survival, lookups, and what chains took.

May import what stands beside `specrouter` in `policies`, and of `specrouter` its constants.
"""
