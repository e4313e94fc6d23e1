"""`stride fetch`: weights into the cache."""

from __future__ import annotations

import click

from harness import presets
from harness.backbones import _weights
from harness.cli.main import emit


@click.command(name="fetch")
@click.argument("names", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document: [{name, folder}].")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """Download pinned weights, check their hashes, convert them once to safetensors.

    The cache is $STRIDE_CACHE, or ~/.cache/stridebench.

    \b
    stride fetch smollm2-135m
    stride list backbones        names, and which are ready
    """
    rows = []
    for name in names:
        spec = presets.resolve(name)
        if "source" not in spec.params:
            rows.append({"name": name, "folder": None})
            click.echo(f"{name}: needs no weights", err=True)
            continue
        source = _weights.parse(name, spec.params["source"])
        folder = _weights.fetch(name, source, lambda text: click.echo(text, err=True))
        rows.append({"name": name, "folder": str(folder)})
        if not as_json:
            click.echo(f"{name}: {folder or 'ready'}")
    if as_json:
        emit(rows)
