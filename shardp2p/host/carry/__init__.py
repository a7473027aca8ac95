"""Live streams move to another path: a connection's frames travel through a stream of another connection to the peer.

Start with `ledger`, which counts and keeps what was sent, then docs/protocols/carry.md. `carrier` names connections,
moves them, and answers who moves them. It must not know why a path is better: that is the business of who calls it.
"""
