"""The handwritten digits: data, the task that scores them, and the shipped models."""

from __future__ import annotations

import numpy as np
import pytest

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.discover import shipped
from stridebench.harness.errors import ContractError, OutputError, UsageError
from stridebench.harness.plan import presets
from stridebench.harness.record.outputs import Picture
from stridebench.harness.registry import METHODS, TASKS
from stridebench.harness.synthetic import digits
from stridebench.tasks.digits import DigitPictures, classify


class TestData:
    def test_every_digit_is_in_one_split(self) -> None:
        training, held_out = digits.load("train"), digits.load("held-out")
        assert (len(training.labels), len(held_out.labels)) == (1498, 299)
        assert training.levels.shape[1:] == (8, 8) and training.levels.max() == 16
        assert set(training.labels.tolist()) == set(held_out.labels.tolist()) == set(range(10))

    def test_an_unknown_split_is_refused(self) -> None:
        with pytest.raises(UsageError, match="no split 'test' of the digits; choose one of train, held-out"):
            digits.load("test")

    def test_pictures_keep_the_levels(self) -> None:
        levels = digits.load("held-out").levels[:20]
        assert all(np.array_equal(digits.levels(digits.picture(one)), one) for one in levels)

    def test_the_vocabulary_has_every_word_of_a_caption(self) -> None:
        words = {word for label in range(10) for word in digits.caption(label).split()}
        assert words == set(digits.VOCABULARY)


class TestTask:
    def test_prompts_are_balanced_and_stable(self) -> None:
        task = TASKS.get("digits")(30)
        labels = [prompt.data["label"] for prompt in task.prompts()]
        assert labels == list(range(10)) * 3
        assert list(task.prompts()) == list(task.prompts())
        assert task.prompts()[13].text == "digit 3"
        assert (task.modality, task.eos) == ("image", False)

    def test_real_held_out_digits_are_named_as_the_task_says(self) -> None:
        held_out = digits.load("held-out")
        assert round(float((classify(held_out.levels) == held_out.labels).mean()), 3) == 0.983

    def test_the_score_is_one_for_its_class_alone(self) -> None:
        held_out, prompts = digits.load("held-out"), DigitPictures(10).prompts()
        first = int(np.flatnonzero(classify(held_out.levels) == 4)[0])
        picture = digits.picture(held_out.levels[first])
        scores = [DigitPictures(10).score(prompt, picture, ())["named"] for prompt in prompts]
        assert scores == [0.0] * 4 + [1.0] + [0.0] * 5

    def test_wrong_input_is_refused(self) -> None:
        task = DigitPictures()
        with pytest.raises(ContractError, match="scores pictures"):
            task.score(task.prompts()[0], "a text", ())
        with pytest.raises(OutputError, match="8x8 pixels and this picture 8x9"):
            task.score(task.prompts()[0], Picture(np.zeros((8, 9, 3), dtype=np.uint8)), ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pictures"),
    [
        pytest.param("digits-s", 20, id="digits-s"),
        *(pytest.param(name, 40, id=f"{name}-40", marks=pytest.mark.audit) for name in ("digits-s", "digits-l")),
    ],
)
def test_the_shipped_model_draws_the_digits_it_is_asked_for(name: str, pictures: int) -> None:
    """At temperature 1 more than 80 % must be right."""
    if not (shipped(name) / "model.safetensors").exists():
        pytest.skip(f"{name} is not shipped")
    model, task = presets.load(f"embedded-{name}", "fp32"), DigitPictures(pictures)
    scores = []
    for prompt in task.prompts():
        draws = SeededDraws(0, "digits", prompt.id, 0)
        run = open_run(model, lambda _: model, prompt, Sampling(temperature=1.0), 64, draws)
        tokens = decode(METHODS.get("autoregressive")(), run).tokens
        scores.append(task.score(prompt, model.decode(tokens), tokens)["named"])
    assert sum(scores) / len(scores) > 0.8
