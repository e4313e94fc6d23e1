"""LibriSpeech, or recordings in the same folders: SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt with sound files.

Source: Panayotov et al. 2015, "LibriSpeech: an ASR corpus based on public domain audio books"; openslr.org/12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import within
from stridebench.harness.registry import TASKS
from stridebench.harness.synthetic.speech import read_sound, utterances
from stridebench.tasks.loaders.files import locate, missing
from stridebench.tasks.loaders.speech import SpeechTask

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
