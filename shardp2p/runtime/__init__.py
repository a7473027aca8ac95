"""The model on one device: load layers, run them over cache rows, choose tokens. Knows no network. Start at block.py."""
