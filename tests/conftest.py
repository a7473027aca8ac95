"""What every test needs before anything else is imported."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

# Read when torch and its libraries are first imported: one thread keeps tests repeatable and fair to each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test reaches a model hub, whatever a library would like to check there.
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell that starts a run in the background has it ignore these, and the children that tests interrupt inherit that.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# The same examples in every run: what fails once fails again.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu` where there is none, and say so."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device, and torch sees none here")
