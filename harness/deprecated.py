"""Names of version 0.1 that moved or changed. They keep working, with a DeprecationWarning, until 1.0."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType
from typing import Any

MODULES: dict[str, tuple[str, ...]] = {
    "harness.backbone": ("harness.core.backbone",),
    "harness.backbones.bpt": ("harness.backbones.mesh.published.adapter",),
    "harness.backbones.drafter": ("harness.backbones.text.drafter",),
    "harness.backbones.hf_causal": ("harness.backbones.text.hf_causal",),
    "harness.backbones.image": ("harness.backbones.image.adapter",),
    "harness.backbones.masked": ("harness.backbones.masked.adapter",),
    "harness.backbones.masked_tabular": ("harness.backbones.toy.masked_tabular",),
    "harness.backbones.mesh": ("harness.backbones.mesh.adapter",),
    "harness.backbones.nets.bpt": ("harness.backbones.mesh.published.bpt",),
    "harness.backbones.nets.deepmesh": ("harness.backbones.mesh.published.deepmesh",),
    "harness.backbones.nets.gated": ("harness.backbones.slots.gated",),
    "harness.backbones.nets.generic": ("harness.backbones.slots.transformers_net",),
    "harness.backbones.nets.llama": ("harness.backbones.slots.fused_llama",),
    "harness.backbones.nets.llamagen": ("harness.backbones.image.published.llamagen_net",),
    "harness.backbones.nets.mesh": ("harness.backbones.mesh.model",),
    "harness.backbones.nets.mesh_net": ("harness.backbones.mesh.fused_net",),
    "harness.backbones.nets.mesh_points": ("harness.backbones.mesh.point_encoder",),
    "harness.backbones.nets.michelangelo": ("harness.backbones.mesh.published.michelangelo",),
    "harness.backbones.nets.vq": ("harness.backbones.image.vq",),
    "harness.backbones.nets.whisper": ("harness.backbones.speech.whisper_decoder",),
    "harness.backbones.noisy": ("harness.backbones.text.noisy",),
    "harness.backbones.real_image": ("harness.backbones.image.published.adapter",),
    "harness.backbones.tabular": ("harness.backbones.toy.tabular",),
    "harness.backbones.whisper": ("harness.backbones.speech.whisper",),
    "harness.benchmark_trees": ("harness.bench.trees",),
    "harness.benchmark_windows": ("harness.bench.windows",),
    "harness.benchmarks": ("harness.bench.peers",),
    "harness.canvas": ("harness.core.canvas",),
    "harness.clock": ("harness.core.clock",),
    "harness.contracts": (
        "harness.core.capabilities",
        "harness.core.cache",
        "harness.core.draft",
        "harness.core.costs",
    ),
    "harness.core.open_run": ("harness.core.run",),
    "harness.costs": ("harness.core.costs",),
    "harness.draws": ("harness.core.draws",),
    "harness.enumerate": (
        "harness.proof.enumerate",
        "harness.proof.enumerating_draws",
        "harness.proof.simplex",
    ),
    "harness.executors": ("harness.run.executors",),
    "harness.fidelity": (
        "harness.proof.prove",
        "harness.proof.distance",
        "harness.proof.cases",
        "harness.proof.mutants",
        "harness.proof.divergence",
    ),
    "harness.files": ("harness.record.files",),
    "harness.fit": ("harness.plan.compatibility",),
    "harness.gang": ("harness.core.batch",),
    "harness.law": ("harness.core.sampling",),
    "harness.layers": ("harness.bench.layers",),
    "harness.ledger": (
        "harness.record.columns",
        "harness.record.metrics",
    ),
    "harness.loop": ("harness.core.loop", "harness.core.run"),
    "harness.method": ("harness.core.method", "harness.core.run"),
    "harness.outputs": ("harness.record.outputs",),
    "harness.paired": ("harness.bench.paired",),
    "harness.plan": ("harness.plan.cells",),
    "harness.presets": ("harness.plan.presets",),
    "harness.products": ("harness.core.packed_linear",),
    "harness.provenance": ("harness.record.provenance",),
    "harness.record.ledger": ("harness.record.columns", "harness.record.metrics"),
    "harness.record.resampling": ("harness.record.stats",),
    "harness.resolve": (
        "harness.plan.names",
        "harness.plan.yaml_lines",
    ),
    "harness.runner": (
        "harness.run.options",
        "harness.run.executors",
        "harness.run.group",
        "harness.run.schedule",
        "harness.run.attempt",
        "harness.run.scoring",
        "harness.run.summary",
    ),
    "harness.session": ("harness.core.session",),
    "harness.stats": ("harness.record.stats",),
    "harness.store": ("harness.record.store",),
    "harness.suite": ("harness.plan.suite",),
    "harness.taps": ("harness.core.hidden",),
    "harness.task": ("harness.core.task",),
    "harness.teacher": ("harness.train.teacher",),
    "harness.train": ("harness.train.loop",),
    "harness.verdicts": ("harness.proof.verdicts",),
    "harness.worlds.code": ("harness.synthetic.code",),
    "harness.worlds.deepmesh_tokens": ("harness.backbones.mesh.deepmesh_tokens",),
    "harness.worlds.digits": ("harness.synthetic.digits",),
    "harness.worlds.emoji": ("harness.synthetic.emoji",),
    "harness.worlds.mesh_tokens": (
        "harness.backbones.mesh.bpt_tokens",
        "harness.synthetic.shapes",
    ),
    "harness.worlds.shapes": ("harness.synthetic.shapes",),
    "harness.worlds.speech": ("harness.synthetic.speech",),
    "harness.worlds.sudoku": ("harness.synthetic.sudoku",),
    "methods.drafters.adjacency": ("methods.drafters.eagle.adjacency_sizing",),
    "methods.drafters.bands": ("methods.drafters.scales.drafter",),
    "methods.drafters.blocks": ("methods.drafters.jacobi.cllm_block",),
    "methods.drafters.branching": ("methods.trees.sampled",),
    "methods.drafters.cells": ("methods.drafters.scales.band",),
    "methods.drafters.choices": ("methods.trees.published",),
    "methods.drafters.codes": ("methods.verifiers.image_codes",),
    "methods.drafters.feature_cache": ("methods.drafters.eagle.cache",),
    "methods.drafters.feature_nets": ("methods.drafters.eagle.net",),
    "methods.drafters.feature_parts": ("methods.drafters.eagle.layers",),
    "methods.drafters.feature_trees": ("methods.drafters.eagle.trees",),
    "methods.drafters.features": ("methods.drafters.eagle.drafter",),
    "methods.drafters.growth": ("methods.drafters.eagle.trees", "methods.verifiers.neighbourhood"),
    "methods.drafters.head_blocks": ("methods.drafters.heads.layers",),
    "methods.drafters.head_nets": ("methods.drafters.heads.net", "methods.drafters.heads.config"),
    "methods.drafters.heads": ("methods.drafters.heads.drafter",),
    "methods.drafters.model": ("methods.drafters.draft_model",),
    "methods.drafters.tied": ("methods.drafters.target_check",),
    "methods.drafters.jacobi": ("methods.drafters.jacobi.window",),
    "methods.drafters.lookahead": ("methods.drafters.jacobi.lookahead",),
    "methods.drafters.mesh_heads": ("methods.drafters.heads.conditioned_drafter",),
    "methods.drafters.passes": ("methods.drafters.adapters.layouts",),
    "methods.drafters.refine": ("methods.drafters.jacobi.refine",),
    "methods.drafters.reuse": ("methods.drafters.jacobi.reuse",),
    "methods.drafters.sampler_nets": ("methods.drafters.scales.net",),
    "methods.drafters.samplers": ("methods.drafters.scales.samplers",),
    "methods.drafters.sizes": ("methods.drafters.eagle.measured_sizing",),
    "methods.drafters.starts": ("methods.drafters.jacobi.initialisation",),
    "methods.drafters.streams": ("methods.drafters.adapters.predictive_stream",),
    "methods.drafters.templates": ("methods.trees.shapes",),
    "methods.trees": (
        "methods.trees.structure",
        "methods.trees.growth",
    ),
    "methods.verifiers.neighbours": ("methods.verifiers.codebook", "methods.drafters.scales.band"),
    "methods.verifiers.plants": ("methods.verifiers.mutants",),
    "methods.verifiers.relaxed": ("methods.verifiers.lantern", "methods.verifiers.neighbourhood"),
    "methods.verifiers.tree_seq": ("methods.verifiers.k_seq",),
    "reports.compare": ("reports.gate.compare",),
    "reports.cost": ("reports.cost.tables",),
    "reports.cost_cards": ("reports.cost.cards",),
    "reports.figures": ("reports.pareto", "reports.plot_style"),
    "reports.gate": ("reports.gate.decision",),
    "reports.gate.gate": ("reports.gate.decision",),
    "reports.layers_figure": ("reports.adapter_layers",),
    "reports.papers": ("reports.papers.report",),
    "reports.papers.layouts": ("reports.papers.paper_files",),
    "reports.papers.suites": ("reports.papers.report",),
    "reports.scales": ("reports.papers.mulo_sd.stages",),
    "tasks.corpora_7k": ("tasks.mixed_7k", "tasks.gsm8k_7k"),
    "tasks.scenes": ("tasks.emoji_scenes",),
    "reports.sheet": ("reports.text_table",),
    "reports.sheets": ("reports.contact_sheets",),
    "reports.step_counts": ("reports.papers.masked",),
    "reports.study": ("reports.user_study",),
}
"""Each module of 0.1 that moved, and the modules that hold its names today."""

SYMBOLS = {
    "Ends": "TiedEmbeddings",
    "Gang": "Batch",
    "Judged": "TreeJudgement",
    "Lent": "Aggregated",
    "Need": "Requirement",
    "Offers": "Capabilities",
    "Opening": "EncodedPrompt",
    "Plant": "Mutant",
    "harness.contracts.Read": "HostAcceptance",
    "Ranked": "RankedTree",
    "Seat": "Slot",
    "Sheet": "TextTable",
    "cost_sheet": "cost_table",
    "framework_sheet": "framework_table",
    "Seen": "ConditionKV",
    "Start": "Initialiser",
    "Tied": "MadeFor",
    "Verdict": "Acceptance",
    "check_tied": "check_target",
    "elder_siblings": "earlier_siblings",
    "lend": "aggregate",
    "neighbours": "neighbour_count",
    "leads": "parallel_cells",
    "misfit": "incompatibility",
    "odds": "draft_probs",
    "part": "component",
    "harness.worlds.shapes.made": "build",
    "harness.worlds.speech.asked": "in_benchmark",
    "harness.worlds.speech.mark": "digest",
    "harness.worlds.speech.place": "recordings_folder",
    "harness.fidelity.Caught": "TriedMutant",
    "harness.fidelity.planted": "injected",
    "harness.fidelity.prove_plants": "try_mutants",
    "harness.fidelity.word": "verdict_of",
    "harness.presets.known": "by_name",
    "harness.suite.known": "shipped",
    "harness.costs.of": "measured",
    "harness.costs.place": "costs_file",
    "harness.costs.write": "write_costs",
    "methods.verifiers.plants.EARLY_CLOSING": "UNWARPED_NEXT_TOKEN",
    "methods.verifiers.plants.ELDERS_FORGOTTEN": "EARLIER_SIBLINGS_FORGOTTEN",
    "methods.verifiers.plants.PLAIN_CORRECTION": "CORRECTION_FROM_TARGET",
    "harness.gang.RowCache": "BatchedCache",
    "methods.drafters.sizes.Accepted": "AcceptanceHistory",
    "methods.drafters.sizes.Growing": "TreeSizer",
    "methods.drafters.sampler_nets.between": "bilinear",
    "methods.drafters.feature_trees.drawn": "sample_level",
    "methods.drafters.feature_trees.dynamic": "grow_dynamic",
    "methods.drafters.feature_trees.ranked": "grow_dynamic",
    "methods.drafters.feature_trees.static": "grow_static",
}
"""Names of 0.1 that changed: wherever they are imported from, or of one module where the module is named."""

RENAMED = {
    "harness.discover": {"part": "component"},
    "methods.adt_tree": {"Adapting": "AdaptingState"},
    "methods.drafters.unmasking": {"fraction": "unmasked_fraction", "surest": "most_confident"},
    "methods.lantern": {"Relaxing": "LanternState"},
    "methods.lanternpp": {"Relaxing": "LanternPlusPlusState"},
    "methods.mulo_sd": {"Grown": "Progress"},
    "methods.verifiers.energy": {"closed": "without_last_node", "noted": "with_energies", "point": "point_mass"},
    "methods.verifiers.grouped": {"within": "near_codes"},
    "methods.verifiers.rejection": {"acceptance": "acceptance_probs", "odds": "draft_probs"},
    "methods.verifiers.tree": {"Judged": "TreeJudgement"},
    "methods.zipar": {"lead": "token_before"},
    "reports.results": {"known": "all_names"},
    "reports.summary": {"put": "set_interval"},
    "tasks.metrics.attributes": {"Seen": "DetectedObject"},
    "tasks.metrics.geneval": {"Found": "Detection", "kept": "confident"},
    "tasks.metrics.image_stats": {"Shown": "PictureSet", "shown": "sorted_pictures"},
    "tasks.metrics.t2i_compbench": {"Found": "Detection"},
}
"""Names of 0.1 that changed in a module that stayed where it was."""


def lookup(module: str, name: str) -> Any:
    """The object that a module of 0.1 called ``name``.

    Raises:
        AttributeError: the module had no such name, or the name is gone.
    """
    renamed = RENAMED.get(module, {}).get(name)
    if renamed is not None:
        warnings.warn(f"{module}.{name} is now called {renamed}", DeprecationWarning, stacklevel=3)
        return getattr(sys.modules[module], renamed)
    today = SYMBOLS.get(f"{module}.{name}", SYMBOLS.get(name, name))
    for place in MODULES.get(module, ()):
        symbol = getattr(importlib.import_module(place), today, None)
        if symbol is not None:
            warnings.warn(
                f"{module}.{name} moved: import {today} from {_advised(place, today)}", DeprecationWarning, stacklevel=3
            )
            return symbol
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def _advised(place: str, name: str) -> str:
    """``harness.core`` for what the contract exports, else the module itself."""
    core = importlib.import_module("harness.core")
    return "harness.core" if name in core.__all__ else place


def names_of(module: str) -> Callable[[str], Any]:
    """A module-level ``__getattr__`` for a package that was a module in 0.1."""

    def find(name: str) -> Any:
        if name.startswith("__") or _is_submodule(module, name):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return lookup(module, name)

    return find


def _is_submodule(package: str, name: str) -> bool:
    """Whether the import system loads this name after the package's ``__getattr__`` refused it."""
    return "__path__" in vars(sys.modules[package]) and find_spec(f"{package}.{name}") is not None


def alias(old: str, new: str) -> property:
    """A read-only attribute of 0.1 whose name changed."""

    def get(self: Any) -> Any:
        warnings.warn(f"{type(self).__name__}.{old} is now called {new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(get, doc=f"The name of ``{new}`` in version 0.1.")


def setting(old: str, new: str) -> property:
    """As `alias`, for an attribute that a class of 0.1 assigns."""
    read = alias(old, new)

    def set_(self: Any, value: Any) -> None:
        warnings.warn(f"{type(self).__name__}.{old} is now called {new}", DeprecationWarning, stacklevel=2)
        setattr(self, new, value)

    return read.setter(set_)


def adopt(cls: type, names: dict[str, str]) -> None:
    """Let a subclass written for 0.1 define attributes under their old names."""
    for old, new in names.items():
        if old in vars(cls) and new not in vars(cls):
            warnings.warn(f"{cls.__qualname__}.{old} is now called {new}", DeprecationWarning, stacklevel=4)
            setattr(cls, new, vars(cls)[old])


class _Moved(MetaPathFinder, Loader):
    """Finds the modules of 0.1 that are files no more."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_package = any(name.startswith(f"{fullname}.") for name in MODULES)
        return ModuleSpec(fullname, self, is_package=is_package) if is_package or fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = names_of(module.__name__)


class _RenamedLoader(SourceFileLoader):
    """Loads a module whose old names are served by ``__getattr__``."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__dict__["__getattr__"] = names_of(spec.name)
        return module


class _Renamed(MetaPathFinder):
    """Finds the modules of `RENAMED`, so that none of them mentions its old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in RENAMED else None
        if spec is not None and spec.origin is not None:
            spec.loader = _RenamedLoader(fullname, spec.origin)
        return spec


def install() -> None:
    """Let the old names be imported. Modules that moved are looked for after everything else."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Renamed())
        sys.meta_path.append(_Moved())
