"""A peer-to-peer swarm that runs a language model too large for any one of its machines."""
