"""The commands a user types, one file per noun. Start at main.py."""
