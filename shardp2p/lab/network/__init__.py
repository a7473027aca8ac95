"""Networks on one machine: hosts in namespaces, home routers, and an Internet with delay, loss and rates.

It knows nothing of peers and models. Start at lab.py (what runs) and description.py (what is asked for), then
internet.py and nat.py, the pure machine behind it; wan.py is the process that pumps it. docs/lab.md says how to use it.
"""
