"""Measure the swarm and break it. Start at bench.py."""
