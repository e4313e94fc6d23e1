"""transformers in this process: `generate`, assisted generation, and prompt lookup."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stridebench.harness.core.engine import (
    AcceptanceCounts,
    Chunk,
    Engine,
    EngineFault,
    EngineRequest,
    EngineWeights,
    Reply,
    Tells,
)
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import ENGINES

# Watches the candidate generators of transformers: drafted and kept tokens, and when tokens arrive.


@dataclass
class Steps:
    """Counts the proposals of a candidate generator and those that `generate` keeps; otherwise it is the generator.

    Args:
        generator: of transformers.
        drafted: candidates of each target pass.
        accepted: those kept of each target pass.
    """

    generator: Any
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)

    def get_candidates(self, input_ids: Any, **options: Any) -> Any:
        """The generator's, counted."""
        candidates = self.generator.get_candidates(input_ids, **options)
        self.drafted.append(int(candidates[0].shape[1] - input_ids.shape[1]))
        return candidates

    def update_candidate_strategy(self, input_ids: Any, scores: Any, num_matches: int) -> Any:
        """The generator's, which is told how many candidates were kept."""
        self.accepted.append(int(num_matches))
        return self.generator.update_candidate_strategy(input_ids, scores, num_matches)

    def counts(self) -> AcceptanceCounts:
        """The passes that had a draft, and all passes."""
        pairs = [(d, min(a, d)) for d, a in zip(self.drafted, self.accepted, strict=False) if d]
        kept = [accepted for _, accepted in pairs]
        histogram = tuple(kept.count(number) for number in range(max(kept, default=0) + 1))
        return AcceptanceCounts(
            draft_steps=len(pairs),
            drafted=sum(drafted for drafted, _ in pairs),
            accepted=sum(kept),
            histogram=histogram,
            target_passes=len(self.drafted),
        )


class CountedCandidates:
    """Counts the candidates of the generator that `generate` makes; ``steps`` is None if it makes none."""

    def __init__(self, model: Any) -> None:
        self.steps: Steps | None = None
        self._model = model
        self._make = model._get_candidate_generator

    def __enter__(self) -> None:
        self._model._get_candidate_generator = self

    def __exit__(self, *error: object) -> None:
        del self._model._get_candidate_generator

    def __call__(self, **options: Any) -> Steps:
        self.steps = Steps(self._make(**options))
        return self.steps


class ArrivingIds:
    """A streamer that notes when each part of an output arrives; the first is the prompt."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._prompt = True

    def put(self, value: Any) -> None:
        """Some ids."""
        if not self._prompt:
            self.chunks.append(Chunk(time.perf_counter_ns(), int(value.numel())))
        self._prompt = False

    def end(self) -> None:
        """The output is complete."""
        return


DTYPES = ("float32", "bfloat16", "float16")


@ENGINES.register("transformers")
@dataclass
class Transformers(Engine):
    """`generate` of transformers; its candidate generators are watched, so that every step's acceptance is told.

    Args (options of a suite's entry):
        model: a folder or a name of the hub; "": the backbone's folder.
        assistant: a folder or a name of the hub for assisted generation; "": none.
        early_exit: draft with so many first layers of the model; 0: do not.
        prompt_lookup: drafts of a step from the prompt; 0: none.
        mtp: draft with the model's heads for later tokens, if it has some.
        num_assistant_tokens: drafts of a step, with an assistant or early_exit.
        dtype: float32, bfloat16 or float16.
        device: of torch.
    """

    model: str = ""
    assistant: str = ""
    early_exit: int = 0
    prompt_lookup: int = 0
    mtp: bool = False
    num_assistant_tokens: int = 5
    dtype: str = "float32"
    device: str = "cpu"

    tells: ClassVar[Tells] = Tells(
        takes_ids=True,
        gives_ids=True,
        arrival="chunk",
        acceptance=("draft_steps", "drafted", "accepted", "histogram", "target_passes"),
        concurrent=False,
    )

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"transformers: dtype is {self.dtype!r}; choose {', '.join(DTYPES)}")
        if bool(self.assistant) + bool(self.early_exit) + bool(self.prompt_lookup) + self.mtp > 1:
            raise UsageError("transformers: name an assistant, early_exit, prompt_lookup or mtp, one of them")

    def open(self, weights: EngineWeights) -> None:
        """Load the model, and the assistant."""
        name = self.model or weights.folder
        if not name:
            raise UsageError("transformers: the backbone has no folder of weights; name one with `model`")
        self._model = self._load(name)
        self._assistant = self._load(self.assistant) if self.assistant else None

    def _load(self, name: str) -> Any:
        from transformers import AutoModelForCausalLM, GenerationConfig

        try:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=self.dtype, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise EngineFault("engine_error", f"transformers cannot load {name}: {str(error)[:200]}") from error
        own = model.generation_config
        model.generation_config = GenerationConfig(eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id or 0)
        return model.to(self.device).eval()

    def close(self) -> None:
        """Free the models."""
        self._model = self._assistant = None

    def told(self) -> dict[str, object]:
        """Its version, and the type that it computes in."""
        import transformers

        return {"version": transformers.__version__, "dtype": self.dtype}

    def generate(self, request: EngineRequest) -> Reply:
        """One decode on this thread, from a generator of torch that is put back."""
        import torch

        if not request.ids:
            raise EngineFault("refused", "the prompt must be known as token ids")
        ids = torch.tensor([request.ids], device=self.device)
        arrivals, watched = ArrivingIds(), CountedCandidates(self._model)
        try:
            with watched, torch.inference_mode(), torch.random.fork_rng():
                torch.manual_seed(request.seed)
                output = self._model.generate(ids, streamer=arrivals, **self._options(request))
        except (RuntimeError, ValueError) as error:
            raise EngineFault("engine_error", f"{type(error).__name__}: {str(error)[:200]}") from error
        tokens = tuple(output[0, len(request.ids) :].tolist())
        full = len(tokens) >= request.max_tokens
        return Reply(
            tokens=tokens,
            chunks=tuple(arrivals.chunks),
            output_tokens=len(tokens),
            prompt_tokens=len(request.ids),
            finish="length" if full else "stop",
            acceptance=watched.steps.counts() if watched.steps else None,
        )

    def _options(self, request: EngineRequest) -> dict[str, object]:
        options: dict[str, Any] = {"max_new_tokens": request.max_tokens, "do_sample": request.temperature > 0}
        if request.temperature > 0:
            options |= {"temperature": request.temperature, "top_k": request.top_k, "top_p": request.top_p}
        if request.ignore_eos:
            options["eos_token_id"] = None
        if self.prompt_lookup:
            options["prompt_lookup_num_tokens"] = self.prompt_lookup
        if self.mtp:
            options["use_mtp"] = True
        if self.early_exit:
            options["assistant_early_exit"] = self.early_exit
        if self.early_exit or self._assistant is not None:
            drafts = (self._assistant or self._model).generation_config
            drafts.num_assistant_tokens, drafts.num_assistant_tokens_schedule = self.num_assistant_tokens, "constant"
            drafts.assistant_confidence_threshold = 0.0
        if self._assistant is not None:
            options["assistant_model"] = self._assistant
        return options
