"""Circuits: bytes between two peers that a third one passes on (libp2p's circuit v2 on the wire, our own code).

Knows connections and streams, nothing of swarms or models. Start at service.py; docs/protocols/relay.md.
"""
