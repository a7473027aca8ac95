"""What crosses the network: values, bytes, frames, streams. Knows no libp2p and no model.

Start at messages.py for the values, then protocols.py for who sends them; codec.py and framing.py make bytes of them,
channel.py and credit.py move those over a stream.py. docs/protocols/ has the rules.
"""
