"""What a page says of a run as a whole: when, where and with what it was made, and how to make it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stridebench.harness.errors import printable, printable_line

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store


@dataclass(frozen=True)
class RunFacts:
    """A run in words.

    Args:
        name: of the suite, or of the folder of a run without one.
        created: when it began.
        facts: pairs of a name and a text.
        command: what it was started with; secrets are already taken out. "" where it is not known.
        manifest: the manifest as JSON, without its cells.
    """

    name: str
    created: str
    description: str
    facts: tuple[tuple[str, str], ...]
    command: str
    manifest: str

    @staticmethod
    def of(store: Store) -> RunFacts:
        """The facts of a run's manifest."""
        manifest = store.manifest
        suite, source = manifest.get("suite") or {}, manifest.get("provenance") or {}
        rest = {key: value for key, value in manifest.items() if key != "cells"}
        facts = tuple((name, printable_line(text)) for name, text in _facts(manifest, source) if text)
        return RunFacts(
            name=printable_line(_name(suite, store)),
            created=printable_line(str(manifest["created"]))[:19].replace("T", " "),
            description=printable_line(str(suite.get("description") or "")),
            facts=facts,
            command=printable_line(_command(source)),
            manifest=printable(json.dumps(rest, indent=1, ensure_ascii=False)),
        )


def _name(suite: Mapping[str, Any], store: Store) -> str:
    """The suite's name; of a run of options alone, which has none, the name of its folder."""
    name = str(suite.get("name") or "run")
    return store.address.rstrip("/").rpartition("/")[2] or name if name == "adhoc" else name


def _command(source: Mapping[str, Any]) -> str:
    """The command line of a run, with `stride` in the place of the path that it was called by."""
    argv = source.get("argv")
    if not isinstance(argv, list) or not argv:
        return ""
    return shlex.join(["stride", *map(str, argv[1:])])


def _facts(manifest: Mapping[str, Any], source: Mapping[str, Any]) -> list[tuple[str, str]]:
    machine, git = source.get("machine") or {}, source.get("git") or {}
    gpus = [str(gpu.get("name")) for gpu in machine.get("gpus") or () if isinstance(gpu, dict)]
    memory, cores = machine.get("memory_bytes"), machine.get("cores")
    commit = str(git.get("commit") or "")[:12]
    versions = source.get("versions") or {}
    environment = source.get("environment") or {}
    return [
        ("started", f"{str(manifest['created'])[:19].replace('T', ' ')} UTC"),
        ("processor", f"{machine.get('cpu') or 'unknown'}{f', {cores} cores' if cores else ''}"),
        ("threads", str(machine.get("threads") or "")),
        ("memory", f"{memory / 2**30:.0f} GiB" if isinstance(memory, int) else ""),
        ("GPU", ", ".join(gpus)),
        ("machine", str(source.get("fingerprint") or "")),
        ("commit", f"{commit}{', with changes' if git.get('dirty') else ''}" if commit else ""),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items() if version)),
        ("environment", " ".join(f"{name}={value}" for name, value in environment.items())),
        ("schema", str(manifest["schema"])),
    ]
