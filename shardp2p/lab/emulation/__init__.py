"""Rings whose layers and drafts are emulated: what they cost and how often they are right is given, the rest real."""
