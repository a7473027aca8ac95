"""Measure the swarm and break it. Start at local_swarm.py, then loopback.py."""
