"""How programs on this machine talk to a running peer. Knows no libp2p and no torch. Start at local.py."""
