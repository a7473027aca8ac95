"""The first layers of a model, run in the client itself (--local-layers)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardp2p.cli.progress import progress_bar
from shardp2p.config import prepare_compute
from shardp2p.errors import ConfigError
from shardp2p.vocabulary import DType, LayerRange
from shardp2p.weights.store import StoredModel

if TYPE_CHECKING:
    from shardp2p.node import Node
    from shardp2p.runtime.block import Block
    from shardp2p.runtime.device import DeviceThread


def open_device() -> DeviceThread:
    """The thread that computes; a context manager that ends it."""
    prepare_compute()
    from shardp2p.runtime.device import DeviceThread

    return DeviceThread()


async def hold_first(
    node: Node, device: DeviceThread, count: int, model: StoredModel, dtype: DType, cache_rows: int
) -> None:
    """Load the first `count` layers and serve them to ourselves. Raises: ConfigError when the model has fewer."""
    import trio

    from shardp2p.cli.interrupts import interrupts

    layers = LayerRange(0, count)
    if layers.stop > model.manifest.layers:
        raise ConfigError(f"--local-layers {layers.stop} is more than {model.name} has: {model.manifest.layers}")

    def load() -> Block:
        from shardp2p.runtime.load import load_block
        from shardp2p.runtime.prepare import prepare

        prepare(model.directory, dtype, "cpu")
        block = load_block(model.directory, layers, dtype=dtype, digests=model.manifest.digests(), progress=progress)
        block.warm_up()
        return block

    with progress_bar() as report:

        def progress(done: int, total: int) -> None:
            interrupts.check()
            report(f"loading layers {layers}", done, total)

        await trio.to_thread.run_sync(_import_runtime, abandon_on_cancel=True)
        block = await device.run(load)
    from shardp2p.stage.holding import Holding

    node.hold(model.name, block, device, Holding(model.manifest.digest, dtype, cache_rows), 0)


def _import_runtime() -> None:
    """Seconds: in a thread that holds up neither the network nor a signal."""
    import shardp2p.runtime.load
    import shardp2p.stage.worker  # noqa: F401
