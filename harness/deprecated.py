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
    "harness.backbone": ("stridebench.harness.core.backbone",),
    "stridebench.harness.backbones.bpt": ("stridebench.harness.backbones.mesh.published.adapter",),
    "stridebench.harness.backbones.drafter": ("stridebench.harness.backbones.text.drafter",),
    "stridebench.harness.backbones.hf_causal": ("stridebench.harness.backbones.text.hf_causal",),
    "stridebench.harness.backbones.image": ("stridebench.harness.backbones.image.adapter",),
    "stridebench.harness.backbones.masked": ("stridebench.harness.backbones.masked.adapter",),
    "stridebench.harness.backbones.masked_tabular": ("stridebench.harness.backbones.toy.masked_tabular",),
    "stridebench.harness.backbones.mesh": ("stridebench.harness.backbones.mesh.adapter",),
    "stridebench.harness.backbones.nets.bpt": ("stridebench.harness.backbones.mesh.published.bpt",),
    "stridebench.harness.backbones.nets.deepmesh": ("stridebench.harness.backbones.mesh.published.deepmesh",),
    "stridebench.harness.backbones.nets.gated": ("stridebench.harness.backbones.slots.gated",),
    "stridebench.harness.backbones.nets.generic": ("stridebench.harness.backbones.slots.transformers_net",),
    "stridebench.harness.backbones.nets.llama": ("stridebench.harness.backbones.slots.fused_llama",),
    "stridebench.harness.backbones.nets.llamagen": ("stridebench.harness.backbones.image.published.llamagen_net",),
    "stridebench.harness.backbones.nets.mesh": ("stridebench.harness.backbones.mesh.model",),
    "stridebench.harness.backbones.nets.mesh_net": ("stridebench.harness.backbones.mesh.fused_net",),
    "stridebench.harness.backbones.nets.mesh_points": ("stridebench.harness.backbones.mesh.point_encoder",),
    "stridebench.harness.backbones.nets.michelangelo": ("stridebench.harness.backbones.mesh.published.michelangelo",),
    "stridebench.harness.backbones.nets.vq": ("stridebench.harness.backbones.image.vq",),
    "stridebench.harness.backbones.nets.whisper": ("stridebench.harness.backbones.speech.whisper_decoder",),
    "stridebench.harness.backbones.noisy": ("stridebench.harness.backbones.text.noisy",),
    "stridebench.harness.backbones.real_image": ("stridebench.harness.backbones.image.published.adapter",),
    "stridebench.harness.backbones.tabular": ("stridebench.harness.backbones.toy.tabular",),
    "stridebench.harness.backbones.whisper": ("stridebench.harness.backbones.speech.whisper",),
    "harness.benchmark_trees": ("stridebench.harness.bench.trees",),
    "harness.benchmark_windows": ("stridebench.harness.bench.windows",),
    "harness.benchmarks": ("stridebench.harness.bench.peers",),
    "harness.canvas": ("stridebench.harness.core.canvas",),
    "harness.clock": ("stridebench.harness.core.clock",),
    "harness.contracts": (
        "stridebench.harness.core.capabilities",
        "stridebench.harness.core.cache",
        "stridebench.harness.core.draft",
        "stridebench.harness.core.costs",
    ),
    "stridebench.harness.core.open_run": ("stridebench.harness.core.run",),
    "harness.costs": ("stridebench.harness.core.costs",),
    "harness.draws": ("stridebench.harness.core.draws",),
    "harness.enumerate": (
        "stridebench.harness.proof.enumerate",
        "stridebench.harness.proof.enumerating_draws",
        "stridebench.harness.proof.simplex",
    ),
    "harness.executors": ("stridebench.harness.run.executors",),
    "harness.fidelity": (
        "stridebench.harness.proof.prove",
        "stridebench.harness.proof.distance",
        "stridebench.harness.proof.cases",
        "stridebench.harness.proof.mutants",
        "stridebench.harness.proof.divergence",
    ),
    "harness.files": ("stridebench.harness.record.files",),
    "harness.fit": ("stridebench.harness.plan.compatibility",),
    "harness.gang": ("stridebench.harness.core.batch",),
    "harness.law": ("stridebench.harness.core.sampling",),
    "harness.layers": ("stridebench.harness.bench.layers",),
    "harness.ledger": (
        "stridebench.harness.record.columns",
        "stridebench.harness.record.metrics",
    ),
    "harness.loop": ("stridebench.harness.core.loop", "stridebench.harness.core.run"),
    "harness.method": ("stridebench.harness.core.method", "stridebench.harness.core.run"),
    "harness.outputs": ("stridebench.harness.record.outputs",),
    "harness.paired": ("stridebench.harness.bench.paired",),
    "stridebench.harness.plan": ("stridebench.harness.plan.cells",),
    "harness.presets": ("stridebench.harness.plan.presets",),
    "harness.products": ("stridebench.harness.core.packed_linear",),
    "harness.provenance": ("stridebench.harness.record.provenance",),
    "stridebench.harness.record.ledger": ("stridebench.harness.record.columns", "stridebench.harness.record.metrics"),
    "stridebench.harness.record.resampling": ("stridebench.harness.record.stats",),
    "harness.resolve": (
        "stridebench.harness.plan.names",
        "stridebench.harness.plan.yaml_lines",
    ),
    "harness.runner": (
        "stridebench.harness.run.options",
        "stridebench.harness.run.executors",
        "stridebench.harness.run.group",
        "stridebench.harness.run.schedule",
        "stridebench.harness.run.attempt",
        "stridebench.harness.run.scoring",
        "stridebench.harness.run.summary",
    ),
    "harness.session": ("stridebench.harness.core.session",),
    "harness.stats": ("stridebench.harness.record.stats",),
    "harness.store": ("stridebench.harness.record.store",),
    "harness.suite": ("stridebench.harness.plan.suite",),
    "harness.taps": ("stridebench.harness.core.hidden",),
    "harness.task": ("stridebench.harness.core.task",),
    "harness.teacher": ("stridebench.harness.train.teacher",),
    "stridebench.harness.train": ("stridebench.harness.train.loop",),
    "harness.verdicts": ("stridebench.harness.proof.verdicts",),
    "harness.worlds.code": ("stridebench.harness.synthetic.code",),
    "harness.worlds.deepmesh_tokens": ("stridebench.harness.backbones.mesh.deepmesh_tokens",),
    "harness.worlds.digits": ("stridebench.harness.synthetic.digits",),
    "harness.worlds.emoji": ("stridebench.harness.synthetic.emoji",),
    "harness.worlds.mesh_tokens": (
        "stridebench.harness.backbones.mesh.bpt_tokens",
        "stridebench.harness.synthetic.shapes",
    ),
    "harness.worlds.shapes": ("stridebench.harness.synthetic.shapes",),
    "harness.worlds.speech": ("stridebench.harness.synthetic.speech",),
    "harness.worlds.sudoku": ("stridebench.harness.synthetic.sudoku",),
    "stridebench.methods.drafters.adjacency": ("stridebench.methods.drafters.eagle.adjacency_sizing",),
    "stridebench.methods.drafters.bands": ("stridebench.methods.drafters.scales.drafter",),
    "stridebench.methods.drafters.blocks": ("stridebench.methods.drafters.jacobi.cllm_block",),
    "stridebench.methods.drafters.branching": ("stridebench.methods.trees.sampled",),
    "stridebench.methods.drafters.cells": ("stridebench.methods.drafters.scales.band",),
    "stridebench.methods.drafters.choices": ("stridebench.methods.trees.published",),
    "stridebench.methods.drafters.codes": ("stridebench.methods.verifiers.image_codes",),
    "stridebench.methods.drafters.feature_cache": ("stridebench.methods.drafters.eagle.cache",),
    "stridebench.methods.drafters.feature_nets": ("stridebench.methods.drafters.eagle.net",),
    "stridebench.methods.drafters.feature_parts": ("stridebench.methods.drafters.eagle.layers",),
    "stridebench.methods.drafters.feature_trees": ("stridebench.methods.drafters.eagle.trees",),
    "stridebench.methods.drafters.features": ("stridebench.methods.drafters.eagle.drafter",),
    "stridebench.methods.drafters.growth": (
        "stridebench.methods.drafters.eagle.trees",
        "stridebench.methods.verifiers.neighbourhood",
    ),
    "stridebench.methods.drafters.head_blocks": ("stridebench.methods.drafters.heads.layers",),
    "stridebench.methods.drafters.head_nets": (
        "stridebench.methods.drafters.heads.net",
        "stridebench.methods.drafters.heads.config",
    ),
    "stridebench.methods.drafters.heads": ("stridebench.methods.drafters.heads.drafter",),
    "stridebench.methods.drafters.model": ("stridebench.methods.drafters.draft_model",),
    "stridebench.methods.drafters.tied": ("stridebench.methods.drafters.target_check",),
    "stridebench.methods.drafters.jacobi": ("stridebench.methods.drafters.jacobi.window",),
    "stridebench.methods.drafters.lookahead": ("stridebench.methods.drafters.jacobi.lookahead",),
    "stridebench.methods.drafters.mesh_heads": ("stridebench.methods.drafters.heads.conditioned_drafter",),
    "stridebench.methods.drafters.passes": ("stridebench.methods.drafters.adapters.layouts",),
    "stridebench.methods.drafters.refine": ("stridebench.methods.drafters.jacobi.refine",),
    "stridebench.methods.drafters.reuse": ("stridebench.methods.drafters.jacobi.reuse",),
    "stridebench.methods.drafters.sampler_nets": ("stridebench.methods.drafters.scales.net",),
    "stridebench.methods.drafters.samplers": ("stridebench.methods.drafters.scales.samplers",),
    "stridebench.methods.drafters.sizes": ("stridebench.methods.drafters.eagle.measured_sizing",),
    "stridebench.methods.drafters.starts": ("stridebench.methods.drafters.jacobi.initialisation",),
    "stridebench.methods.drafters.streams": ("stridebench.methods.drafters.adapters.predictive_stream",),
    "stridebench.methods.drafters.templates": ("stridebench.methods.trees.shapes",),
    "stridebench.methods.trees": (
        "stridebench.methods.trees.structure",
        "stridebench.methods.trees.growth",
    ),
    "stridebench.methods.verifiers.neighbours": (
        "stridebench.methods.verifiers.codebook",
        "stridebench.methods.drafters.scales.band",
    ),
    "stridebench.methods.verifiers.plants": ("stridebench.methods.verifiers.mutants",),
    "stridebench.methods.verifiers.relaxed": (
        "stridebench.methods.verifiers.lantern",
        "stridebench.methods.verifiers.neighbourhood",
    ),
    "stridebench.methods.verifiers.tree_seq": ("stridebench.methods.verifiers.k_seq",),
    "reports.compare": ("stridebench.reports.gate.compare",),
    "stridebench.reports.cost": ("stridebench.reports.cost.tables",),
    "reports.cost_cards": ("stridebench.reports.cost.cards",),
    "reports.figures": ("stridebench.reports.pareto", "stridebench.reports.plot_style"),
    "stridebench.reports.gate": ("stridebench.reports.gate.decision",),
    "stridebench.reports.gate.gate": ("stridebench.reports.gate.decision",),
    "reports.layers_figure": ("stridebench.reports.adapter_layers",),
    "stridebench.reports.papers": ("stridebench.reports.papers.report",),
    "stridebench.reports.papers.layouts": ("stridebench.reports.papers.paper_files",),
    "stridebench.reports.papers.suites": ("stridebench.reports.papers.report",),
    "reports.scales": ("stridebench.reports.papers.mulo_sd.stages",),
    "tasks.corpora_7k": ("stridebench.tasks.mixed_7k", "stridebench.tasks.gsm8k_7k"),
    "tasks.scenes": ("stridebench.tasks.emoji_scenes",),
    "reports.sheet": ("stridebench.reports.text_table",),
    "reports.sheets": ("stridebench.reports.contact_sheets",),
    "reports.step_counts": ("stridebench.reports.papers.masked",),
    "reports.study": ("stridebench.reports.user_study",),
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
    "stridebench.methods.verifiers.plants.EARLY_CLOSING": "UNWARPED_NEXT_TOKEN",
    "stridebench.methods.verifiers.plants.ELDERS_FORGOTTEN": "EARLIER_SIBLINGS_FORGOTTEN",
    "stridebench.methods.verifiers.plants.PLAIN_CORRECTION": "CORRECTION_FROM_TARGET",
    "harness.gang.RowCache": "BatchedCache",
    "stridebench.methods.drafters.sizes.Accepted": "AcceptanceHistory",
    "stridebench.methods.drafters.sizes.Growing": "TreeSizer",
    "stridebench.methods.drafters.sampler_nets.between": "bilinear",
    "stridebench.methods.drafters.feature_trees.drawn": "sample_level",
    "stridebench.methods.drafters.feature_trees.dynamic": "grow_dynamic",
    "stridebench.methods.drafters.feature_trees.ranked": "grow_dynamic",
    "stridebench.methods.drafters.feature_trees.static": "grow_static",
}
"""Names of 0.1 that changed: wherever they are imported from, or of one module where the module is named."""

RENAMED = {
    "stridebench.harness.discover": {"part": "component"},
    "stridebench.methods.adt_tree": {"Adapting": "AdaptingState"},
    "stridebench.methods.drafters.unmasking": {"fraction": "unmasked_fraction", "surest": "most_confident"},
    "stridebench.methods.lantern": {"Relaxing": "LanternState"},
    "stridebench.methods.lanternpp": {"Relaxing": "LanternPlusPlusState"},
    "stridebench.methods.mulo_sd": {"Grown": "Progress"},
    "stridebench.methods.verifiers.energy": {
        "closed": "without_last_node",
        "noted": "with_energies",
        "point": "point_mass",
    },
    "stridebench.methods.verifiers.grouped": {"within": "near_codes"},
    "stridebench.methods.verifiers.rejection": {"acceptance": "acceptance_probs", "odds": "draft_probs"},
    "stridebench.methods.verifiers.tree": {"Judged": "TreeJudgement"},
    "stridebench.methods.zipar": {"lead": "token_before"},
    "stridebench.reports.results": {"known": "all_names"},
    "stridebench.reports.summary": {"put": "set_interval"},
    "stridebench.tasks.metrics.attributes": {"Seen": "DetectedObject"},
    "stridebench.tasks.metrics.geneval": {"Found": "Detection", "kept": "confident"},
    "stridebench.tasks.metrics.image_stats": {"Shown": "PictureSet", "shown": "sorted_pictures"},
    "stridebench.tasks.metrics.t2i_compbench": {"Found": "Detection"},
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
    """``stridebench.harness.core`` for what the contract exports, else the module itself."""
    core = importlib.import_module("stridebench.harness.core")
    return "stridebench.harness.core" if name in core.__all__ else place


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
