"""Reports on serving: workloads that arrive, and what became of their requests.

Imports what `reports` imports: neither SimPy nor torch.
"""
