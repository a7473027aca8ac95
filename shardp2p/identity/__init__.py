"""Who is speaking, and who may be in a swarm: keys, signed values, invites, memberships. Knows nothing of networks.

Start at keys.py, signed.py and token.py; what is kept on disk is in owned.py and joined.py.
"""
