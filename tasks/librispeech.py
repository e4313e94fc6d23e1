"""LibriSpeech, or recordings in folders like its: SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt; and how speech is scored.

Source: Panayotov et al. 2015, "LibriSpeech: an ASR corpus based on public domain audio books"; openslr.org/12.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.errors import OutputError, within
from stridebench.harness.record.outputs import Output
from stridebench.harness.registry import TASKS
from stridebench.harness.synthetic.speech import read_sound, utterances
from stridebench.tasks.loaders.files import locate, missing
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


NAME, ORIGIN = "a part of LibriSpeech", "openslr.org/12 (test-clean.tar.gz and others, unpacked)"


@TASKS.register("librispeech")
@dataclass(frozen=True)
class LibriSpeech(SpeechTask):
    """Transcribe read English; the categories are the speakers.

    Args:
        folder: a part such as test-clean, which contains the folders of speakers; "" is LibriSpeech/test-clean in the
            data folder.
        limit: number of utterances, evenly spread over the part; 0 takes all (test-clean: 1.2 GB of samples).
    """

    folder: str = ""
    limit: int = 100

    source = "Panayotov et al. 2015; openslr.org/12, CC BY 4.0"

    def __post_init__(self) -> None:
        within("the task librispeech", 0, limit=self.limit)

    def prompts(self) -> Sequence[Prompt]:
        """Return the utterances by speaker, chapter and number."""
        root = locate(self.folder, "LibriSpeech/test-clean")
        if not root.is_dir():
            raise missing(root, NAME, ORIGIN)
        recordings = utterances(root)
        chosen = min(self.limit or len(recordings), len(recordings))
        picked = [recordings[len(recordings) * k // chosen] for k in range(chosen)]
        return tuple(
            Prompt(
                f"librispeech/{recording.id}",
                None,
                None,
                read_sound(recording.path),
                recording.speaker,
                {"reference": recording.text},
            )
            for recording in picked
        )
