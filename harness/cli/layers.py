"""`stride paper layers`: how an adapter changes a model's hidden rows, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click
import pandas as pd
from rich.console import Console
from rich.progress import track

from stridebench.harness.cli.main import emit, json_option, say
from stridebench.harness.core.backbone import DTYPES
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import component, declare_all
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.device import check_device
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import modality
from stridebench.harness.registry import BACKBONES, TASKS
from stridebench.harness.train import adapter_layers as layers
from stridebench.reports import text_table
from stridebench.reports.papers import adapter_layers

CSV, PNG = "layers.csv", "layers.png"
BATCH = 8
"""Prompts that are continued together."""


@click.command(name="layers")
@click.argument("backbone")
@click.option("--adapter", required=True, metavar="NAME|FOLDER", help="A shipped or a trained adapter.")
@click.option("--task", required=True, help="Task of the prompts: gsm8k, programs, humaneval, ...")
@click.option("--prompts", "count", default=50, show_default=True, type=click.IntRange(1), help="How many prompts.")
@click.option(
    "--tokens", default=128, show_default=True, type=click.IntRange(1), help="New tokens of a prompt, at most."
)
@click.option(
    "--reading",
    default="beside",
    show_default=True,
    type=click.Choice(get_args(layers.Reading)),
    help="Rows with the adapter attend to the text without it, as in a decode (beside), or to each other (alone).",
)
@click.option("--dtype", type=click.Choice(DTYPES), help="Default: that of the backbone.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--out", required=True, type=click.Path(path_type=Path), help=f"Folder of {CSV} and {PNG}.")
@json_option("[{layer, norm_vanilla, ...}]")
def command(
    backbone: str,
    adapter: str,
    task: str,
    count: int,
    tokens: int,
    reading: layers.Reading,
    dtype: str | None,
    device: str,
    out: Path,
    as_json: bool,
) -> None:
    """Measure hidden rows without and with an adapter, layer by layer, on greedy texts (Cross-Regression, Fig. 3).

    Measures: norms, cosines to the layer before, cosines of the two rows. Means by prompt, intervals over prompts.

    \b
    stride paper layers embedded-code --adapter cross-regression --task programs --prompts 8 --out layers
    stride paper layers hub:ORG/NAME --adapter trained/mine --task gsm8k --device cuda --dtype bf16 --out layers
    """
    declare_all()
    _refuse(backbone, adapter, out)
    prompts = _prompts(backbone, task)[:count]
    check_device(device)
    out.mkdir(parents=True, exist_ok=True)
    model = presets.load(backbone, dtype or BACKBONES.get(presets.resolve(backbone).adapter).default_dtype, device)
    read = model.adapter(component("adapter", adapter, backbone, model.fingerprint))
    console = Console(stderr=True)
    batches = [prompts[start : start + BATCH] for start in range(0, len(prompts), BATCH)]
    shown_batches = track(batches, "reading", console=console, disable=as_json or not console.is_terminal)
    frame = layers.summary(pd.concat([layers.measure(model, read, batch, tokens, reading) for batch in shown_batches]))
    title = (
        f"{backbone} {model.dtype} and {adapter}, {reading}: {task}, {len(prompts)} prompts, {tokens} tokens at most"
    )
    with (out / CSV).open("x", encoding="utf-8", newline="") as file:
        frame.to_csv(file, index=False)
    adapter_layers.draw(frame, title, out / PNG)
    if as_json:
        emit(frame.to_dict("records"))
        return
    text_table.print_table(adapter_layers.table(frame, title), Console())
    say(f"wrote {out / CSV}\nwrote {out / PNG}")


def _refuse(backbone: str, adapter: str, out: Path) -> None:
    """Check the arguments before anything is loaded."""
    missing = layers.NEEDS - presets.resolve(backbone).meets()
    if missing:
        needs = ", ".join(sorted(f"{need.name} ({need.value})" for need in missing))
        raise UsageError(f"the backbone {backbone!r} does not meet {needs}; take a causal language model")
    component("adapter", adapter, backbone)
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; name a folder")
    for path in (out / CSV, out / PNG):
        if path.exists():
            raise UsageError(f"{path} is there already and is not overwritten; move it, or name another folder")


def _prompts(backbone: str, name: str) -> Sequence[Prompt]:
    """Return all prompts of a task."""
    spec, task = presets.resolve(backbone), TASKS.get(name)()
    if modality(task.modality) != modality(spec.modality()):
        raise UsageError(
            f"the task {name!r} is of {task.modality} and the backbone {backbone!r} makes {spec.modality()}; take a "
            f"task of its kind: `stride list tasks`"
        )
    prompts: Sequence[Prompt] = task.prompts()
    if not spec.reads_text() and any(prompt.tokens is None for prompt in prompts):
        raise UsageError(
            f"the backbone {backbone!r} has no tokenizer, and {name!r} asks in text; take another backbone or task"
        )
    return prompts
