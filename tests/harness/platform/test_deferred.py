"""Imports that wait until they are used."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.platform import deferred

LIBRARY = """
LOADED = True
class Kind:
    def __init__(self, x=0): self.x = x
    def doubled(self): return 2 * self.x
def add(a, b=1): return a + b
"""
USER = """
from deferred_library import Kind, add
def made(x): return Kind(x)
def is_kind(x): return isinstance(x, Kind)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "deferred_library.py").write_text(LIBRARY)
    (tmp_path / "deferred_user.py").write_text(USER)
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    deferred.install({"deferred_user": {"deferred_library": ["Kind", "add"]}})
    yield tmp_path
    sys.meta_path[:] = finders
    for name in ("deferred_user", "deferred_library", "deferred_other"):
        sys.modules.pop(name, None)


def imported(name: str) -> Any:
    __import__(name)
    return sys.modules[name]


@pytest.mark.usefixtures("library")
def test_a_library_is_imported_when_it_is_used() -> None:
    user = imported("deferred_user")
    assert "deferred_library" not in sys.modules
    assert not user.is_kind(3)  # no instance can exist yet
    assert "deferred_library" not in sys.modules
    assert user.add(2) == 3 and "deferred_library" in sys.modules
    kind = user.made(4)
    assert kind.doubled() == 8 and user.is_kind(kind) and not user.is_kind(3)
    assert type(kind) is imported("deferred_library").Kind


@pytest.mark.usefixtures("library")
def test_a_stand_in_has_the_signature_the_subclasses_and_the_unions_of_the_real_one() -> None:
    user = imported("deferred_user")
    assert list(inspect.signature(user.add).parameters) == ["a", "b"]
    assert user.Kind | None == imported("deferred_library").Kind | None

    class Own(user.Kind):  # type: ignore[misc]
        pass

    assert issubclass(Own, imported("deferred_library").Kind) and Own(3).doubled() == 6


def test_a_file_that_uses_what_it_imports_gets_the_real_one(library: Path) -> None:
    (library / "deferred_user.py").write_text("from deferred_library import Kind, add\nSUM = add(1)\nK = Kind(2)\n")
    user = imported("deferred_user")
    assert (user.SUM, user.K.doubled()) == (2, 4)


def test_a_name_that_is_not_listed_brings_the_real_library(library: Path) -> None:
    (library / "deferred_user.py").write_text("from deferred_library import LOADED, add\n")
    user = imported("deferred_user")
    assert user.LOADED is True and user.add(1) == 2


def test_files_that_import_each_other_share_the_stand_ins(library: Path) -> None:
    (library / "deferred_other.py").write_text("from deferred_library import Kind\n")
    (library / "deferred_user.py").write_text("import deferred_other\nfrom deferred_library import add\n")
    deferred.install({"deferred_other": {"deferred_library": ["Kind"]}})
    user = imported("deferred_user")
    assert "deferred_library" not in sys.modules
    assert user.deferred_other.Kind(1).doubled() == 2 and user.add(1) == 2


def test_a_library_that_is_there_is_taken_as_it_is(library: Path) -> None:
    real = imported("deferred_library")
    assert imported("deferred_user").Kind is real.Kind
    (library / "deferred_user.py").write_text("import deferred_library\nfrom deferred_library.part import x\n")
    del sys.modules["deferred_user"], sys.modules["deferred_library"]
    with pytest.raises(ModuleNotFoundError, match="deferred_library"):  # as without deferring
        imported("deferred_user")


def test_the_command_line_alone_defers() -> None:
    code = (
        "import sys, stridebench, stridebench.harness.backbones; print([type(one).__module__ for one in sys.meta_path])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert deferred.__name__ not in shown


@pytest.mark.slow
def test_reading_a_language_model_imports_no_compiler_and_no_distributed_tensors(tmp_path: Path) -> None:
    code = """
        import sys
        from stridebench.harness.platform import deferred
        deferred.install()
        import stridebench.harness.cli.execution, stridebench.harness.cli.run, stridebench.tasks.humaneval
        import stridebench.harness.backbones
        from transformers import LlamaConfig
        from stridebench.harness.backbones.checkpoints import transformers_models
        sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, vocab_size=40)
        LlamaConfig(architectures=["LlamaForCausalLM"], **sizes).save_pretrained(sys.argv[1])
        from pathlib import Path
        config = transformers_models.read_config("small", Path(sys.argv[1]))
        import transformers.models.llama.modeling_llama as llama
        large = ("torch._dynamo", "torch.distributed.tensor", "accelerate", "matplotlib", "scipy.stats")
        print([name for name in large if name in sys.modules])
        import torch
        assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]
        assert torch._dynamo.utils.is_compile_supported("cpu") is not None
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"
