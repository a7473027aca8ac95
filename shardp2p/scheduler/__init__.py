"""Where layers live: plans, and the ring for a request. Pure; knows no network and no torch. Start at plan.py."""
