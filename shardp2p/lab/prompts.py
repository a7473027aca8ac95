"""What models are asked in measurements. Pure."""

from __future__ import annotations

OPEN_PROMPTS = (
    "Explain to a child why the sea is salty.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Write a Python function that merges two sorted lists, and explain it.",
    "List ten cities in Europe with one sentence about each.",
)
"""Prompts whose answers hold little that was there before."""

_PASSAGES = (
    """The harbour master counted the boats at dawn, wrote the number into the green book, and went back to bed. Nobody
had asked him to count them, and nobody ever read the book, but he had done it for forty years.""",
    """def area(width, height):
    if width < 0 or height < 0:
        raise ValueError('negative side')
    return width * height


def volume(width, height, depth):
    return area(width, height) * depth""",
    """Apples 12, pears 7, plums 31, quinces 4, cherries 250, medlars 2, apricots 19, peaches 16, nectarines 5,
damsons 44, greengages 8, mirabelles 90, sloes 300, figs 11, mulberries 63.""",
    """Dear members, the meeting of the chess club is moved from Monday to Thursday at half past seven, in the small
hall behind the library. Please bring your own boards, and tell Mrs. Alder if you cannot come.""",
)
REPEAT_PROMPTS = tuple(f"Repeat the following text exactly, word for word:\n\n{passage}" for passage in _PASSAGES)
"""Prompts whose answers were in the prompt."""

VARIED_PROMPTS: tuple[tuple[str, str], ...] = (
    ("chat", "What is the difference between a comet and an asteroid?"),
    ("chat", "My plants keep dying. I water them every day. What am I doing wrong?"),
    ("chat", "Explain to a child why the sky is blue."),
    ("chat", "Give me three reasons to learn to play an instrument, and one reason not to."),
    ("code", "Write a Python function that returns the n-th Fibonacci number without recursion."),
    ("code", "Write a C function that reverses a string in place, with a comment on each line."),
    ("code", "Show an SQL query that lists the five customers with the most orders."),
    ("code", "def quicksort(items):\n    if len(items) <= 1:\n        return items\nComplete this function."),
    ("list", "List the planets of the solar system with one fact each."),
    ("list", "Write the numbers from 1 to 40, separated by commas."),
    ("list", "List ten European countries and their capitals as 'country: capital'."),
    ("list", "Make a packing list for a week of hiking, one item per line."),
    ("story", "Write the beginning of a story about a lighthouse keeper who finds a letter."),
    ("story", "Tell a short tale about two robots who want to see the sea."),
    ("story", "Continue: It was a bright cold day in April, and the clocks were striking thirteen."),
    ("story", "Write a poem of eight lines about rain on a tin roof."),
)
"""Four prompts of each of four kinds: (kind, text)."""

MIXED_PROMPTS = (*VARIED_PROMPTS, *(("repeat", text) for text in REPEAT_PROMPTS))
"""Twenty prompts, of which some answers repeat what was said and others do not: (kind, text)."""
