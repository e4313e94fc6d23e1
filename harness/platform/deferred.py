"""Imports large libraries when they are used: some files of transformers import them for names that they rarely use.

transformers reads torch's compiler, its distributed tensors and accelerate for every model, which takes a second and
80 MB in a process that decodes on one device. While one of the files in ``DEFERRED`` is imported, its imports of those
names give stand-ins. A stand-in becomes the real object where it is called, read or subclassed. Nothing changes for a
library that was imported before, for other files, and for names that are not listed. The command line alone asks for
this: a program that imports this package, and the workers of other packages' methods, import as Python does.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, final

Names = Mapping[str, Sequence[str]]
"""Names by the module that a file imports them from."""
DEFERRED: Mapping[str, Names] = {
    "torchvision.ops.roi_align": {"torch._dynamo.utils": ["is_compile_supported"]},
    "transformers.masking_utils": {"torch._dynamo._trace_wrapped_higher_order_op": ["TransformGetItemToIndex"]},
    "transformers.distributed.parallel_utils": {
        "torch.distributed._functional_collectives": ["wait_tensor"],
        "torch.distributed.tensor": ["DTensor"],
    },
    "transformers.distributed.mixin": {
        "transformers.distributed.expert_parallel": ["apply_expert_parallelism"],
        "transformers.distributed.tensor_parallel": ["apply_tensor_parallelism", "gather_state_dict_for_save"],
    },
    "transformers.distributed.sharding_utils": {
        "torch.distributed.tensor": ["DTensor"],
        "torch.distributed.tensor._utils": ["compute_local_shape_and_global_offset"],
        "torch.distributed.tensor.placement_types": ["Shard"],
    },
    "transformers.distributed.checkpoint": {
        "torch.distributed.checkpoint.hf_storage": ["HuggingFaceStorageReader", "HuggingFaceStorageWriter"],
        "torch.distributed.tensor": ["Shard"],
        "torch.distributed.tensor.placement_types": ["_StridedShard"],
    },
    "transformers.distributed.fsdp": {
        "torch.distributed._composable.fsdp": ["fully_shard"],
        "torch.distributed.fsdp": ["CPUOffloadPolicy", "MixedPrecisionPolicy"],
    },
    "transformers.integrations.accelerate": {
        "accelerate": ["dispatch_model"],
        "accelerate.utils": ["get_max_memory"],
        "accelerate.utils.modeling": ["clean_device_map", "get_max_layer_size"],
    },
    "transformers.generation.utils": {
        "accelerate.hooks": ["AlignDevicesHook", "add_hook_to_module"],
        "transformers.distributed.tensor_parallel": ["get_kv_heads_per_rank"],
    },
    "transformers.integrations.peft": {
        "accelerate": ["dispatch_model"],
        "accelerate.utils": ["get_balanced_memory", "infer_auto_device_map"],
    },
    "transformers.modeling_utils": {
        "accelerate.hooks": ["add_hook_to_module"],
        "accelerate.utils": ["extract_model_from_parallel"],
        "transformers.distributed.tensor_parallel": ["verify_tp_plan"],
        "transformers.integrations.flex_attention": ["flex_attention_forward"],
    },
    **{
        f"transformers.loss.loss_{kind}": {
            "scipy.optimize": ["linear_sum_assignment"],
            "accelerate": ["PartialState"],
            "accelerate.utils": ["reduce"],
        }
        for kind in ("deformable_detr", "for_object_detection", "grounding_dino", "lw_detr", "rf_detr", "rt_detr")
    },
}
"""The files, and what is deferred in each; functions and classes that they use inside their functions only."""


DECORATED = frozenset(
    {
        "transformers.generation.continuous_batching.cache",
        "transformers.integrations.deepgemm",
        "transformers.integrations.eager_paged",
        "transformers.integrations.finegrained_fp8",
        "transformers.integrations.sonicmoe",
        "transformers.modeling_utils",
    }
)
"""Files that mark functions for torch's compiler, by decorators that import it."""
COMPILER = "torch._dynamo"


def install(files: Mapping[str, Names] = DEFERRED) -> None:
    """Defer these imports in files that are imported from now on; repeating it is free."""
    if not any(isinstance(finder, _Files) and finder.files == files for finder in sys.meta_path):
        sys.meta_path.insert(0, _Files(files))


@final
class StandIn:
    """A function or class that is imported when it is used.

    Args:
        module: that holds it.
        name: of it there.
    """

    def __init__(self, module: str, name: str) -> None:
        self.__dict__.update(_module=module, _name=name)

    def _real(self) -> Any:
        if isinstance(sys.modules.get(self._module), _Module):  # used while its file is imported
            del sys.modules[self._module]
        return getattr(importlib.import_module(self._module), self._name)

    @property
    def __wrapped__(self) -> Any:
        """The real object, whose signature `inspect` gives."""
        return self._real()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type]:
        return (self._real(),)

    def __instancecheck__(self, instance: object) -> bool:
        return self._module in sys.modules and isinstance(instance, self._real())  # else there can be no instance

    def __or__(self, other: Any) -> Any:
        return self._real() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._real()


class _Files(MetaPathFinder):
    """Finds the files, and changes nothing else of their import."""

    def __init__(self, files: Mapping[str, Names]) -> None:
        self.files = files
        self.in_graph: list[Any] = []
        """Functions that the compiler is told of when it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in DECORATED and fullname not in self.files and (fullname != COMPILER or not self.in_graph):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Deferring(spec.loader, self)
        return spec


class _Deferring(Loader):
    """A loader within which some names are stand-ins."""

    def __init__(self, loader: Loader, finder: _Files) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        name, marked = module.__name__, self._finder.in_graph
        try:
            with _deferred(self._finder.files.get(name, {})), _unmarked(marked) if name in DECORATED else nullcontext():
                self._loader.exec_module(module)
        except ImportError:  # another version imports more of the same packages: nothing is deferred
            self._loader.exec_module(module)
        if name == COMPILER:
            module.allow_in_graph(marked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # such as a file's text, for tracebacks


class _Module(ModuleType):
    """A module of stand-ins. Asked for anything else it gives its place to the real one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by imports, and by whoever looks through all modules
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _deferred(names: Names) -> Iterator[None]:
    """Modules of stand-ins in the places of those that were not imported yet."""
    modules = {module: _Module(module) for module in names if module not in sys.modules}
    sys.modules.update(modules)
    for module in names:
        stand_in = sys.modules[module]
        if isinstance(stand_in, _Module):  # perhaps one of a file that imports this one
            stand_in.__dict__.update({name: StandIn(module, name) for name in names[module]})
    try:
        yield
    finally:
        for module, own in modules.items():
            if sys.modules.get(module) is own:
                del sys.modules[module]


@contextmanager
def _unmarked(in_graph: list[Any]) -> Iterator[None]:
    """Decorators of `torch.compiler` do not import the compiler.

    A function that is kept from it is decorated when it is called. One that it shall not look into is noted.
    """
    torch: Any = importlib.import_module("torch")
    if COMPILER in sys.modules:
        yield
        return
    disable, allow = torch.compiler.disable, torch.compiler.allow_in_graph
    outer, compiler = torch.__dict__.get("_dynamo"), _Module(COMPILER)

    def later(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return disable(function)(*args, **kwargs)

        return call

    def noted(function: Any) -> Any:
        in_graph.append(function)
        return function

    def constant(function: Any) -> Any:
        function._dynamo_marked_constant = True  # all that the compiler's own decorator does
        return function

    compiler.__dict__.update(allow_in_graph=noted, assume_constant_result=constant)
    torch._dynamo = compiler
    torch.compiler.disable = lambda fn=None, *args, **kwargs: (
        later(fn) if fn is not None and not args and not kwargs else disable(fn, *args, **kwargs)
    )
    torch.compiler.allow_in_graph = noted
    try:
        yield
    finally:
        if torch.__dict__.get("_dynamo") is compiler:
            del torch._dynamo
        if outer is not None:  # a file that imports this one is not done
            torch._dynamo = outer
        torch.compiler.disable, torch.compiler.allow_in_graph = disable, allow
