"""Base class of speech tasks: transcripts are scored by their word error rate."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.errors import OutputError
from stridebench.harness.record.outputs import Output
from stridebench.tasks.metrics import wer


class SpeechTask(Task, ABC):
    """A task whose prompts have a waveform as condition and the spoken words in ``data["reference"]``."""

    modality = "speech"
    metrics = wer.METRICS
    optional_metrics = ("wer",)
    set_metrics = wer.SET_METRICS

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Return word error rates of a transcript, without ``wer`` if Whisper's spellings are missing."""
        return wer.scores(_transcript(prompt, output))

    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        """Return the errors of all transcripts over the words of all references."""
        return wer.corpus([_transcript(output.prompt, output.output) for output in outputs])


def _transcript(prompt: Prompt, output: Output) -> wer.Transcript:
    if not isinstance(output, str):
        raise OutputError(f"the output of {prompt.id} is a {type(output).__name__}; a transcript is a text")
    return wer.Transcript(prompt.id, str(prompt.data["reference"]), output)
