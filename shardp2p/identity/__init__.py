"""Who is speaking: keys, later signed values and tokens. Knows nothing of networks. Start at keys.py."""
