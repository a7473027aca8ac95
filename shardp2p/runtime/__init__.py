"""The model on one device: load layers, run them over cache rows, choose tokens.

Knows no network, no peers, no sessions. Start at block.py.
"""
