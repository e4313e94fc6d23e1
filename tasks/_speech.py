"""What tasks of speech share: transcripts are scored by their word error rate."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

from harness.core.task import Prompt, Scored, SetScore, Task
from harness.errors import OutputError
from harness.record.outputs import Output
from tasks.metrics import wer


class SpeechTask(Task, ABC):
    """Prompts whose condition is a waveform and whose ``data["reference"]`` is what was said."""

    modality = "speech"
    metrics = wer.METRICS
    set_metrics = wer.SET_METRICS

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Word error rate of a transcript; ``wer`` is left out where Whisper's table of spellings is absent.

        Raises:
            OutputError: the reference has no words, or the output is no text.
        """
        return wer.scores(_transcript(prompt, output))

    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        """Errors of all transcripts over words of all references."""
        return wer.corpus([_transcript(one.prompt, one.output) for one in outputs])


def _transcript(prompt: Prompt, output: Output) -> wer.Transcript:
    if not isinstance(output, str):
        raise OutputError(f"the output of {prompt.id} is a {type(output).__name__}; a transcript is a text")
    return wer.Transcript(prompt.id, str(prompt.data["reference"]), output)
