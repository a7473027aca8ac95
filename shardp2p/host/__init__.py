"""libp2p, and only here. Knows nothing of models. Start at host.py."""
