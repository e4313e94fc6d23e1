"""Running servers and prompts for them, as `stride engine check` and `stride audit URL` take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from stridebench.harness.cli.main import LocalPath, add_to_step_summary, emit, say
from stridebench.harness.core.engine import Penalties
from stridebench.harness.core.task import Prompt, Sampling
from stridebench.harness.engines.answer import KEY_ENV
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.entries import EngineUse, TaskUse
from stridebench.harness.registry import ENGINES, TASKS

if TYPE_CHECKING:
    from stridebench.harness.engines.scoring import ScoredServer

LABELS = {"speculative": "with drafts", "plain": "plain"}
MINUTES, TOKENS = 5.0, 64


def server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that asks a running server and its plain decode."""
    for option in (
        click.option("--key-env", help=f"The environment variable that holds its key. Default: {KEY_ENV}."),
        click.option("--max-new-tokens", type=click.IntRange(1), help=f"Of each output. Default: {TOKENS}."),
        click.option(
            "--minutes", type=click.FloatRange(0, min_open=True), help=f"At most, for a server. Default: {MINUTES:g}."
        ),
        click.option("--limit", type=click.IntRange(1), help="Only the first prompts."),
        click.option(
            "--prompts",
            type=LocalPath(exists=True, dir_okay=False),
            help="For a server: a file of prompts, as `stride run --prompts` takes it; they are sent as texts.",
        ),
        click.option(
            "--plain", metavar="URL", help="The same model on the same engine without drafts, to compare with."
        ),
    ):
        function = option(function)
    return function


@dataclass(frozen=True)
class AskedServers:
    """Servers by role, "speculative" and "plain", and the prompts that they get."""

    uses: Mapping[str, EngineUse]
    task: TaskUse
    prompts: Sequence[Prompt]
    tokens: int
    seconds: float


def addresses_of(url: str, plain: str | None) -> dict[str, str]:
    """Return the addresses of a server and of its plain decode, if one is named, by role.

    Raises:
        UsageError: they are the same.
    """
    if plain and plain.rstrip("/") == url.rstrip("/"):
        raise UsageError(
            f"--plain {plain} is the server itself, so nothing would be compared; name a server of the same model "
            "without drafts, or leave --plain out"
        )
    return {"speculative": url, **({"plain": plain} if plain else {})}


def asked_servers(url: str, engine: str | None, prompt: str, options: Mapping[str, Any]) -> AskedServers:
    """Return the servers and prompts that the options name.

    Args:
        engine: the adapter, or None for that of the server's own name.
        prompt: how prompts are sent: "text", or "ids" if they are known.
    """
    if options["prompts"] is None:
        raise UsageError(f"prompts for {url} are missing; name a file with --prompts")
    task: Any = TASKS.get("prompts")(file=str(options["prompts"]))
    chosen = task.prompts()[: options["limit"]]
    if textless := [one.id for one in chosen if one.text is None or one.last]:
        raise UsageError(f"{textless[0]} of {options['prompts']} is not a text; write it as `prompt`, as it is sent")
    from stridebench.harness.engines import checking  # imports torch, so after the prompts

    addresses = addresses_of(url, options["plain"])
    key = options["key_env"] or KEY_ENV
    name = engine or checking.adapter_of(url, key)
    if not hasattr(ENGINES.get(name), "url"):
        raise UsageError(f"{name} runs in this process, so there is no server to ask; `stride list engines` has some")
    uses = {
        role: EngineUse(name, LABELS[role], {"url": at, "prompt": prompt, "key_env": key})
        for role, at in addresses.items()
    }
    seconds = 60 * (options["minutes"] or MINUTES)
    tokens = options["max_new_tokens"] or TOKENS
    return AskedServers(uses, TaskUse("prompts", task, options["limit"]), chosen, tokens, seconds)


def audit_server(
    url: str, sampling: Sampling, penalties: Sequence[str], as_json: bool, options: Mapping[str, Any]
) -> int:
    """Audit a server by its own scoring, print the result, and return the exit code."""
    if not math.isfinite(sampling.temperature):
        raise UsageError(f"the temperature is {sampling.temperature:g}; give a finite one")
    changes = parsed_penalties(penalties)
    asked = asked_servers(url, None, "ids", options)
    from stridebench.harness.engines.scoring import audit_servers  # imports torch, so after the prompts

    result = audit_servers(asked.uses, asked.task, asked.prompts, sampling, asked.tokens, asked.seconds, changes)
    servers = [one for one in (result.own, result.plain) if one is not None]
    lines = [f"{result.verdict}: {_scored_words(result.own)}"]
    if result.plain is not None:
        lines.append(f"- the plain decode: {result.plain.verdict}: {_scored_words(result.plain)}")
    lines += [f"- {line}" for one in servers for line in _findings(one)]
    add_to_step_summary("\n\n".join(lines))
    if as_json:
        emit(asdict(result))
    else:
        say("\n".join(lines))
    return result.exit_code


def parsed_penalties(entries: Sequence[str]) -> Penalties:
    """Return the penalties that are written as NAME=VALUE.

    Raises:
        UsageError: an entry has another name or no finite number.
    """
    values: dict[str, float] = {}
    bias: dict[int, float] = {}
    for entry in entries:
        name, _, written = entry.partition("=")
        try:
            value = float(written)
        except ValueError:
            value = math.nan
        known = name in ("presence", "frequency", "repetition") or name.isdecimal()
        if not known or not math.isfinite(value) or (name == "repetition" and value <= 0):
            raise UsageError(
                f"--penalty {entry} is not a penalty; write presence=0.5, frequency=0.2, repetition=1.2 (above 0), or "
                "42=-1.5 for a bias on the logit of the id 42"
            )
        if name.isdecimal():
            bias[int(name)] = value
        else:
            values[name] = value
    return Penalties(**values, bias=bias)


def _scored_words(one: ScoredServer) -> str:
    """Return what the scoring of a server shows of its tokens."""
    from stridebench.harness.engines.check_verdict import audit_words

    if one.audit is not None:
        return audit_words(one.audit)
    assert one.greedy is not None  # one of both
    lower = f"{one.greedy.lower} of {one.greedy.tokens} tokens are not the most probable one by the server's own rows"
    return f"{lower}, by up to {one.greedy.largest:.2f} nats ({one.greedy.where})" if one.greedy.lower else lower


def _findings(one: ScoredServer) -> list[str]:
    """Return what else the scoring of a server shows."""
    lines = []
    if one.audit is not None:
        total = one.audit.tokens + one.audit.near
        lines.append(f"{one.url}: {one.audit.tokens} of {total} tokens of {one.prompts} outputs could bet")
    if one.failed:
        lines.append(f"{one.url}: {one.failed} requests failed, or came without some ids")
    if one.sent is not None and one.sent.missing:
        lines.append(f"{one.url}: {one.sent.missing} tokens were sent without probabilities")
    if one.sent is not None and one.sent.worst is not None:
        said = "are right" if one.sent.right else "are wrong"
        if one.sent.heated:
            said = "are those behind the temperature, not the model's (vLLM: --logprobs-mode raw_logprobs)"
        apart = f"they differ by up to {one.sent.worst:.2f} from the scored ones ({one.sent.where})"
        lines.append(f"{one.url}: the probabilities sent with {one.sent.tokens} tokens {said}: {apart}")
    return lines
