"""A draft model for what this machine drives (--draft-model)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardp2p.cli.progress import progress_bar
from shardp2p.cli.quick_imports import quick_imports
from shardp2p.config import UpSettings, prepare_compute
from shardp2p.vocabulary import DType
from shardp2p.weights.store import StoredModel

if TYPE_CHECKING:
    from shardp2p.node import Node
    from shardp2p.runtime.draft_model import DraftModel


async def add_drafts(
    node: Node, directory: Path | None, model: StoredModel, *, dtype: DType = "bfloat16", device: str = "cpu"
) -> None:
    """Let the model in `directory`, if one is named, draft for `model` at this node.

    Raises: ConfigError when it is no model that can, as one with another tokenizer; IntegrityError when it is damaged.
    """
    if directory is None:
        return
    import trio

    def load() -> DraftModel:
        prepare_compute()
        with quick_imports():
            from shardp2p.runtime.draft_model import load_draft_model
        return load_draft_model(directory, target=model.directory, dtype=dtype, device=device)

    with progress_bar() as report:
        report(f"loading the draft model {directory.name}", 0, 0)
        drafts = await trio.to_thread.run_sync(load, abandon_on_cancel=True)
    node.proposers.add_model(model.manifest.digest, drafts.drafts)


async def add_drafts_of(node: Node, settings: UpSettings, model: StoredModel) -> None:
    """What `up` was told about drafts: a model for them, and whether answers are kept in memory."""
    if not settings.remembers:
        node.keep_nothing()
    await add_drafts(node, settings.draft_model, model, dtype=settings.dtype, device=settings.device)
