"""What SpecRouter estimates as verdicts come in: agreement, survival and copies.

May import what stands beside `specrouter` in `policies`, and of `specrouter` its constants.
"""
