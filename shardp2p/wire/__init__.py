"""What crosses the network: values, bytes, frames, streams. Knows no libp2p and no model. Start at messages.py."""
