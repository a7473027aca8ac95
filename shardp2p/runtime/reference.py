"""The whole model in one process, by transformers alone: what every ring's answer is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from shardp2p.vocabulary import DType, Token
from shardp2p.wire.tensor import TORCH_DTYPES


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """Generated tokens, the stop token included, and the speed after the first one."""

    tokens: tuple[Token, ...]
    ttft_s: float
    tok_s: float


class _Clock(BaseStreamer):
    """Notes when each token comes; the first call is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(perf_counter())

    def end(self) -> None:
        pass


class Reference:
    """transformers' plain greedy decoding of a model directory."""

    def __init__(self, directory: Path, dtype: DType = "float32") -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=TORCH_DTYPES[dtype])
        self._model.train(False)
        config = self._model.generation_config
        config.do_sample, config.temperature, config.top_p, config.top_k = False, None, None, None

    def generate(
        self, prompt_tokens: Iterable[Token], max_tokens: int, stop_tokens: frozenset[Token] = frozenset()
    ) -> ReferenceRun:
        """Greedy continuation of a prompt, up to `max_tokens` tokens or the first stop token."""
        ids = torch.tensor([list(prompt_tokens)])
        clock = _Clock()
        started = perf_counter()
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                eos_token_id=sorted(stop_tokens) or None,
                pad_token_id=0,
                streamer=clock,
            )
        tokens = tuple(int(token) for token in out[0, ids.shape[1] :])
        times = clock.times[1:]
        rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
        return ReferenceRun(tokens, times[0] - started, rate)
