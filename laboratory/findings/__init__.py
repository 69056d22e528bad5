"""What experiments and benchmarks find, and how it is shown: tables, panels, figures and the page of all.

May import reports, traces and the modules at the root; nothing else of the laboratory.
"""
