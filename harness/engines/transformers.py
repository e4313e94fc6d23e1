"""transformers in this process: `generate`, assisted generation, and prompt lookup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from stridebench.harness.core.engine import Engine, EngineFault, EngineRequest, Reply, Tells, Weights
from stridebench.harness.engines.candidates import Arrivals, Watch
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import ENGINES

DTYPES = ("float32", "bfloat16", "float16")


@ENGINES.register("transformers")
@dataclass
class Transformers(Engine):
    """`generate` of transformers; its candidate generators are watched, so that every step's acceptance is told.

    Args (options of a suite's entry):
        model: a folder or a name of the hub; "": the backbone's folder.
        assistant: a folder or a name of the hub for assisted generation; "": none.
        early_exit: draft with the model's own first so many layers; 0: do not.
        prompt_lookup: drafts of a step from the prompt; 0: none.
        mtp: draft with the model's own heads for later tokens, where it has some.
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

    def open(self, weights: Weights) -> None:
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

    def told(self) -> dict[str, Any]:
        """Its version, and the type that it computes in."""
        import transformers

        return {"version": transformers.__version__, "dtype": self.dtype}

    def generate(self, request: EngineRequest) -> Reply:
        """One decode on this thread, from a generator of torch that is put back."""
        import torch

        if not request.ids:
            raise EngineFault("refused", "the prompt must be known as token ids")
        ids = torch.tensor([request.ids], device=self.device)
        arrivals, watched = Arrivals(), Watch(self._model)
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

    def _options(self, request: EngineRequest) -> dict[str, Any]:
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
