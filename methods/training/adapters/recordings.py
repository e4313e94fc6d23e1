"""Recordings that a backbone transcribes, for an adapter to learn from.

Recordings of a benchmark's voices or sentences are left out, by their transcripts in the folder and by those of the
backbone (see `harness.synthetic.speech.in_benchmark`). So are recordings that are longer than the backbone reads, or
whose transcript has no end. The side of a recording is decided by a hash of its transcript.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic import speech
from stridebench.harness.train.frozen_text import FrozenModel
from stridebench.harness.train.prompts import side_of
from stridebench.harness.train.teacher import Passage


@dataclass(frozen=True)
class Recordings:
    """At most ``count`` recordings, evenly spread over the folder."""

    count: int = 1000


@dataclass
class Transcribed:
    """Passages whose conditions are recordings, and the number of recordings left out for each reason."""

    train: list[Passage] = field(default_factory=list)
    development: list[Passage] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count a recording that is left out."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def transcribed(model: FrozenModel, plan: Recordings) -> Transcribed:
    """The backbone's own transcripts; reports on standard error what was left out.

    Raises:
        UsageError: the folder is missing or malformed, or one of the two sides has no passage.
    """
    root, passages = speech.recordings_folder(), Transcribed()
    listed = speech.utterances(root)
    free = [utterance for utterance in listed if not speech.in_benchmark(utterance.speaker, utterance.text)]
    count = min(plan.count, len(free))
    for number in range(count):
        if number % 50 == 0:
            print(f"{model.backbone.name}: recording {number + 1} of {count}", file=sys.stderr, flush=True)
        _add(passages, model, free[len(free) * number // count])
    reasons = "".join(f", {number} {reason}" for reason, number in passages.skipped.items())
    dropped = len(listed) - len(free)
    summary = f"{root}: of {len(listed)} recordings {dropped} are a benchmark's, {count} were heard{reasons}"
    print(summary, file=sys.stderr, flush=True)
    if not passages.train or not passages.development:
        raise UsageError(
            f"{summary}: {len(passages.train)} are left to train on and {len(passages.development)} to check; give more"
        )
    return passages


def _add(passages: Transcribed, model: FrozenModel, utterance: speech.Utterance) -> None:
    recording = speech.read_sound(utterance.path)
    if len(recording) > model.hears > 0:
        passages.skip("are too long")
        return
    passage = model.transcript(recording)
    text = str(model.backbone.decode(passage.tokens))
    if passage.tokens[-1] not in model.backbone.capabilities.eos:
        passages.skip("have no end")
    elif speech.in_benchmark(utterance.speaker, text):
        passages.skip("are heard as a benchmark's")
    else:
        side = passages.train if side_of(text or utterance.text) == "train" else passages.development
        side.append(passage)
