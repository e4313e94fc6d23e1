"""OpenVINO GenAI in this process: a GGUF file or an exported folder, plain or with drafts from the prompt."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy

from stridebench.harness.core.engine import Chunk, Engine, EngineFault, EngineRequest, EngineWeights, Reply, Tells
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.extras import optional
from stridebench.harness.registry import ENGINES


@ENGINES.register("openvino_genai")
@dataclass
class OpenVINOGenAI(Engine):
    """OpenVINO GenAI's pipeline; acceptance is not told.

    Args (options of a suite's entry):
        model: a GGUF file, or a folder of OpenVINO's format; "": the GGUF file of the backbone.
        device: of OpenVINO.
        prompt_lookup: draft from the prompt.
        num_assistant_tokens: drafts of a step, with prompt_lookup.
        max_ngram_size: longest match, with prompt_lookup.
        precision: of the arithmetic, such as f32; "": OpenVINO's choice for the device.
        threads: of the CPU; 0: OpenVINO's choice.
    """

    model: str = ""
    device: str = "CPU"
    prompt_lookup: bool = False
    num_assistant_tokens: int = 5
    max_ngram_size: int = 3
    precision: str = ""
    threads: int = 0

    tells: ClassVar[Tells] = Tells(takes_ids=True, gives_ids=True, arrival="chunk", concurrent=False)
    needs: ClassVar[tuple[str, ...]] = ("openvino_genai",)
    reads_gguf: ClassVar[bool] = True

    def open(self, weights: EngineWeights) -> None:
        """Load the model."""
        model = self.model or weights.gguf()
        if not model:
            raise UsageError("openvino_genai: name a GGUF file or a folder of OpenVINO's format with `model`")
        self._genai = optional("openvino_genai", "the engine openvino_genai", "engines")
        options: dict[str, Any] = {"prompt_lookup": True} if self.prompt_lookup else {}
        if self.precision:
            options["INFERENCE_PRECISION_HINT"] = self.precision
        if self.threads:
            options["INFERENCE_NUM_THREADS"] = self.threads
        try:
            self._pipeline = self._genai.LLMPipeline(model, self.device, **options)
        except RuntimeError as error:
            raise EngineFault("engine_error", f"OpenVINO cannot load {model}: {_first_line(error)}") from error

    def close(self) -> None:
        """Free the model."""
        self._pipeline = None

    def told(self) -> dict[str, object]:
        """Its version."""
        return {"version": self._genai.get_version()}

    def generate(self, request: EngineRequest) -> Reply:
        """One decode on this thread."""
        if not request.ids:
            raise EngineFault("refused", "the prompt must be known as token ids")
        streamer = _streamer(self._genai)
        try:
            result = self._pipeline.generate(self._inputs(request), self._config(request), streamer)
        except RuntimeError as error:
            raise EngineFault("engine_error", _first_line(error)) from error
        tokens = tuple(map(int, result.tokens[0]))
        reasons = getattr(result, "finish_reasons", None) or [""]
        return Reply(
            tokens=tokens,
            chunks=tuple(streamer.chunks),
            output_tokens=len(tokens),
            prompt_tokens=len(request.ids),
            finish=str(reasons[0]).rpartition(".")[2].lower(),
        )

    def _inputs(self, request: EngineRequest) -> Any:
        openvino = optional("openvino", "the engine openvino_genai", "engines")
        ids = numpy.array([request.ids], dtype=numpy.int64)
        return self._genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))

    def _config(self, request: EngineRequest) -> Any:
        """Set every option of sampling: otherwise the pipeline takes the defaults of the model."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens = request.max_tokens
        config.ignore_eos = request.ignore_eos
        config.apply_chat_template = False
        config.do_sample = request.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p, config.rng_seed = request.temperature, request.top_p, request.seed
            if request.top_k:
                config.top_k = request.top_k
        if self.prompt_lookup:
            config.num_assistant_tokens, config.max_ngram_size = self.num_assistant_tokens, self.max_ngram_size
        return config


def _streamer(genai: Any) -> Any:
    """A streamer that notes when each part of an output arrives; its base class comes with the library."""

    class Arrivals(genai.StreamerBase):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.chunks: list[Chunk] = []

        def write(self, tokens: Any) -> Any:
            count = len(tokens) if isinstance(tokens, list) else 1
            self.chunks.append(Chunk(time.perf_counter_ns(), count))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            return

    return Arrivals()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
