"""Recordings that a backbone writes down, for an adapter to learn from; none of a benchmark is among them.

Of the folder that the user names, recordings of a benchmark's voices or sentences are left out, by what the list says
and by what the backbone hears (see `synthetic.speech.asked`); so is what is longer than the backbone hears, or is
written without an end. The two sides differ by a hash of the transcript.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from harness.errors import UsageError
from harness.synthetic import speech
from harness.train.frozen_text import FrozenModel
from harness.train.prompts import side_of
from harness.train.teacher import Passage


@dataclass(frozen=True)
class Recordings:
    """What is heard: ``count`` recordings at most, evenly spread over the folder."""

    count: int = 1000


@dataclass
class Transcribed:
    """Passages whose conditions are recordings, and how many recordings were left out, by reason."""

    train: list[Passage] = field(default_factory=list)
    development: list[Passage] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)

    def leave(self, why: str) -> None:
        """One more."""
        self.left[why] = self.left.get(why, 0) + 1


def transcribed(body: FrozenModel, plan: Recordings) -> Transcribed:
    """The backbone's own transcripts; says on standard error what was left out.

    Raises:
        UsageError: the folder is missing or malformed, or one of the two sides has no passage.
    """
    root, found = speech.place(), Transcribed()
    listed = speech.utterances(root)
    free = [each for each in listed if not speech.asked(each.speaker, each.text)]
    count = min(plan.count, len(free))
    for number in range(count):
        if number % 50 == 0:
            print(f"{body.backbone.name}: recording {number + 1} of {count}", file=sys.stderr, flush=True)
        _add(found, body, free[len(free) * number // count])
    why = "".join(f", {number} {reason}" for reason, number in found.left.items())
    said = f"{root}: of {len(listed)} recordings {len(listed) - len(free)} are a benchmark's, {count} were heard{why}"
    print(said, file=sys.stderr, flush=True)
    if not found.train or not found.development:
        raise UsageError(
            f"{said}: {len(found.train)} are left to train on and {len(found.development)} to check; give more"
        )
    return found


def _add(found: Transcribed, body: FrozenModel, one: speech.Utterance) -> None:
    sound = speech.read_sound(one.path)
    if len(sound) > body.hears > 0:
        found.leave("are too long")
        return
    passage = body.transcript(sound)
    text = str(body.backbone.decode(passage.tokens))
    if passage.tokens[-1] not in body.backbone.capabilities.eos:
        found.leave("have no end")
    elif speech.asked(one.speaker, text):
        found.leave("are heard as a benchmark's")
    else:
        (found.train if side_of(text or one.text) == "train" else found.development).append(passage)
