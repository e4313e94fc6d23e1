"""`stride fetch`: weights into the cache."""

from __future__ import annotations

import click

from stridebench.harness.cli.main import emit, json_option, say
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets


@click.command(name="fetch")
@click.argument("names", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Delete them from the cache instead; `stride list weights` lists all.")
@click.option("--yes", is_flag=True, help="With --remove: do not ask.")
@json_option("[{name, folder}]; of --remove {deleted, bytes}")
def command(names: tuple[str, ...], remove: bool, yes: bool, as_json: bool) -> None:
    """Download pinned weights, check their hashes, convert them once to safetensors.

    They are stored in $STRIDE_CACHE, by default ~/.cache/stridebench.

    \b
    stride fetch smollm2-135m
    stride list backbones        all names, and which are ready
    stride fetch --remove smollm2-135m
    """
    if remove or yes:
        if not remove:
            raise UsageError("--yes goes with --remove")
        from stridebench.harness.cli.stored import remove_weights

        remove_weights(names, yes, as_json)
        return
    rows = []
    for name in names:
        spec = presets.resolve(name)
        folder = presets.fetch(name, lambda text: say(text, err=True))
        rows.append({"name": name, "folder": None if folder is None else str(folder)})
        if not {"source", "parts"} & set(spec.params):
            say(f"{name}: needs no weights", err=True)
        elif not as_json:
            say(f"{name}: {folder or 'ready'}")
    if as_json:
        emit(rows)
