"""Placement compared with the optimum: generated worlds, oracles, bounds, and what others do.

Must not know the network. Start at comparison.py.
"""
