"""How a swarm knows itself: who is live, what each peer holds, how far they are. Knows no libp2p and no torch.

It sees the network as `wire.stream.Network`; node.py joins it with the host. Start at view.py.
"""
