"""Serve a layer range: session (pure), worker, service. Knows nothing of the coordinator. Start at session.py."""
