"""Policies that let members work ahead of others: the draft writes on while the target judges.

They stand on decoding and the parts all policies share; both worlds carry them out.
"""
