"""Videos: frames and their noise, and the experiment on a bear of 16 x 20 pixels."""

import dataclasses
import json
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import gbplearn as gbp
from gbplearn.apps.data.video import Clip, corrupt, load_bear, read_image
from gbplearn.apps.denoising.layered import PAPER, LayeredModel
from gbplearn.apps.experiments.experiment import run
from gbplearn.apps.experiments.video import METHODS, Video
from gbplearn.apps.experiments.video_figure import draw_pictures
from gbplearn.apps.image_scores import psnr
from gbplearn.layers.layer import Parameter
from gbplearn.network.initial import random_starts
from gbplearn.network.zoo import five_layer_denoiser, pairwise_denoiser, single_layer_denoiser

FRAMES, SIZE = 3, (16, 20)
CLIP = Clip("davis-bear", FRAMES, SIZE)


@dataclasses.dataclass(frozen=True)
class SmallVideo(Video):
    clip: ClassVar[Clip] = CLIP


@pytest.fixture
def bear(tmp_path):
    """A small video in a folder: a shade that moves."""
    folder = tmp_path / "data" / "davis-bear"
    folder.mkdir(parents=True)
    rows, columns = np.mgrid[:32, :40] / 40
    for number in range(FRAMES):
        shades = [0.5 + 0.4 * np.sin(3 * rows + 2 * columns + channel + 0.3 * number) for channel in range(3)]
        Image.fromarray(np.uint8(255 * np.stack(shades, -1))).save(folder / f"{number:05}.png")
    return tmp_path / "data"


def test_psnr_of_known_errors():
    clean = np.full((4, 4, 3), 0.5)
    assert psnr(clean + 0.1, clean) == pytest.approx(20.0)
    assert psnr(clean, clean) == float("inf")


def test_noise_is_a_share_of_the_pixels_with_all_their_channels():
    clean = np.full((2, 60, 80, 3), 2.0)  # no noise has this value
    noisy, mask = corrupt(clean, 0.1, seed=4)
    np.testing.assert_array_equal((noisy != 2).all(-1), mask)
    np.testing.assert_array_equal((noisy != 2).any(-1), mask)
    assert abs(mask.mean() - 0.1) < 4 * np.sqrt(0.1 * 0.9 / mask.size)
    values = noisy[mask]
    assert 0 <= values.min() < 0.05 < 0.95 < values.max() < 1
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.2  # channels are independent
    assert (mask[0] != mask[1]).any()
    first, _ = corrupt(clean[:1], 0.1, seed=4)
    np.testing.assert_array_equal(first[0], noisy[0])
    assert (corrupt(clean, 0.1, seed=5)[1] != mask).any()
    with pytest.raises(ValueError, match=r"share must be a number in \[0, 1\]"):
        corrupt(clean, 1.5)


def test_frames_are_read_in_order_and_resized(bear):
    frames = load_bear(bear, clip=CLIP)
    assert frames.shape == (FRAMES, *SIZE, 3)
    assert frames.dtype == np.uint8
    with Image.open(bear / "davis-bear" / "00001.png") as image:
        halves = np.asarray(image, float).reshape(16, 2, 20, 2, 3).mean((1, 3))
    assert (
        np.abs(frames[1, 1:-1, 1:-1] - halves[1:-1, 1:-1]).max() < 4
    )  # a triangle over four pixels, on a smooth shade
    np.testing.assert_array_equal(load_bear(bear, 2, CLIP), frames[:2])


def test_what_is_wrong_with_a_folder_or_a_file_is_reported_in_a_line(bear, tmp_path):
    with pytest.raises(ValueError, match="davis-bear: there is no such folder; put the frames"):
        load_bear(tmp_path)
    frame = bear / "davis-bear" / "00002.png"
    whole = frame.read_bytes()
    frame.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"00002\.png cannot be read"):
        load_bear(bear, clip=CLIP)
    frame.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"00002\.png is no image"):
        read_image(frame)
    frame.unlink()
    with pytest.raises(ValueError, match="holds 2 frames, the bear has 3"):
        load_bear(bear, clip=CLIP)


@pytest.mark.parametrize(
    ("model", "factors", "edges"),
    [
        # Pairs of neighbours, to the right and down.
        (pairwise_denoiser, 3 * (257 * 454 + 258 * 453), 6 * (257 * 454 + 258 * 453)),
        # Nine windows hold a pixel, with four filters and as many activations each; the pixel and the bias.
        (single_layer_denoiser, 351396, 26003304),
    ],
)
def test_networks_have_the_paper_s_factors(model, factors, edges):
    net = model()
    observation, *others = net.graph(net.batch(np.zeros((1, 258, 454, 3)))).problem(None, "per-edge").groups
    assert observation.factors == 258 * 454 * 3
    assert sum(group.factors for group in others) == factors
    assert sum(group.factors * slot.units for group in others for slot in group.slots) == edges


def test_the_deep_network_has_the_paper_s_sizes():
    shapes = five_layer_denoiser().shapes((258, 454, 3))
    sizes = [shapes[n] for n in shapes if n != "input"]
    assert sizes == [(256, 452, 4), (128, 226, 4), (126, 224, 8), (63, 112, 8), (61, 110, 8)]


def small(**options):
    """Half a minute of a large video is a second of a small one."""
    return dataclasses.replace(PAPER["one layer, continual"], iterations=15, **options)


def test_a_batch_tells_what_is_believed_of_it(bear):
    """The belief is that of the graph that learns, for any batch size."""
    net = single_layer_denoiser()
    x = load_bear(bear, clip=CLIP) / 255
    learner = LayeredModel(single_layer_denoiser, 10, 0.8, 0.0).learner((*SIZE, 3), 0)
    report = learner.update(x[:2], want="input")
    prior = net.priors((*SIZE, 3), seed=0)
    result = net.learn(x[:2], beliefs=prior, iterations=10, damping=0.8, tolerance=0.0)
    np.testing.assert_allclose(report.belief.mean, result["input"].mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(report.belief.std, result["input"].std, rtol=1e-4)
    assert learner.update(x[:1], want="input").belief.shape == (1, *SIZE, 3)  # padded to two
    assert learner.update(x[:1]).belief is None
    with pytest.raises(ValueError, match=r"want must be one of output, input, conv_transpose, got 'pixels'"):
        learner.update(x[:1], want="pixels")


def halved():
    """A network with a layer whose messages go on from frame to frame."""
    return gbp.Sequential(
        gbp.GaussianObservation(sigma=0.2),
        gbp.ConvTranspose2D(4, kernel=3, sigma=0.1, weight_prior=0.15, prior=0.5),
        gbp.Upsample2D(2, sigma=0.03, prior=1.0),
    )


def test_the_experiment_goes_on_where_it_was_stopped(bear, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "one layer, continual", small(network=halved, carry=("upsample",)))
    monkeypatch.setitem(METHODS, "pairwise", dataclasses.replace(PAPER["pairwise"], iterations=30))
    experiment = SmallVideo(("pairwise", "one layer, continual"), frames=FRAMES, data_dir=bear)
    results, *_ = run(experiment, [0], tmp_path / "whole", tmp_path / "ledger.jsonl")
    metrics = {name: m["mean"] for name, m in results["metrics"].items()}
    clean = load_bear(bear, clip=CLIP) / 255
    noisy, _ = corrupt(clean, 0.1, 0)
    before = np.mean([psnr(n, c) for n, c in zip(noisy, clean)])
    assert metrics["PSNR, all frames/pairwise"] > before + 3
    assert metrics["refused frames/pairwise"] == 0
    for name in ("video", "video-frame", "video-crop"):
        assert (tmp_path / "whole" / f"{name}.png").exists()

    (tmp_path / "parts").mkdir()
    # Interrupted in the second frame of the second method.
    seen = []

    def stop(self, x, *args, **options):
        seen.append(x)
        if len(seen) == FRAMES + 2:
            raise KeyboardInterrupt
        return update(self, x, *args, **options)

    update = gbp.Learner.update
    monkeypatch.setattr(gbp.Learner, "update", stop)
    with pytest.raises(KeyboardInterrupt):
        experiment.resume_seed(0, tmp_path / "parts")
    monkeypatch.setattr(gbp.Learner, "update", update)
    again = experiment.resume_seed(0, tmp_path / "parts")
    for name in ("PSNR, all frames/pairwise", "PSNR, all frames/one layer, continual"):
        assert again.metrics[name] == metrics[name]
    held = json.loads((tmp_path / "parts" / "seed-0-one-layer-continual.json").read_text())
    assert len(held["frames"]["psnr"]) == FRAMES

    # What was run for fewer frames is a beginning, what was run for more will do.
    (tmp_path / "begun").mkdir()
    few = dataclasses.replace(experiment, frames=2)
    begun = few.resume_seed(0, tmp_path / "begun")
    assert not begun.before
    assert (
        experiment.resume_seed(0, tmp_path / "begun").metrics["PSNR, all frames/pairwise"]
        == (metrics["PSNR, all frames/pairwise"])
    )
    few.pictures([few.resume_seed(0, tmp_path / "begun")])  # of a frame that the other run did not show
    enough = few.resume_seed(0, tmp_path / "begun")
    assert enough.before
    assert enough.metrics["PSNR, all frames/pairwise"] == begun.metrics["PSNR, all frames/pairwise"]


def test_filters_with_prior_means_of_zero_need_a_random_start(bear):
    """All means zero, no message to a filter or an output has a mean: `J = 0` in either direction."""
    x = load_bear(bear, clip=CLIP)[:1, :12, :12] / 255
    plain = gbp.ConvTranspose2D(2, kernel=3, sigma=0.1, weight_prior=0.1, weight_init=0.0, prior=0.5)
    learnt = {}
    for name, more in (("zero", {}), ("started", {"weight_start": 0.1, "output_start": 0.1})):
        net = gbp.Sequential(gbp.GaussianObservation(0.2), dataclasses.replace(plain, **more))
        learnt[name] = net.learn(x, iterations=100, damping=0.8)["conv_transpose/weight"].mean
    np.testing.assert_array_equal(learnt["zero"], 0)
    assert np.abs(learnt["started"]).max() > 0.01


def test_what_is_known_of_filters_is_where_they_start():
    parameters = {"w": Parameter((200, 50), 0.1, 0.0, start=0.3), "d": Parameter((3,), 0.1, 0.0)}
    prior = {n: gbp.Gaussian.from_moments(mean=jnp.zeros(p.shape), std=p.prior) for n, p in parameters.items()}
    first = random_starts(parameters, prior, seed=1)
    assert set(first) == {"w"}
    assert np.std(first["w"]) == pytest.approx(0.3, rel=0.05)
    assert np.mean(first["w"]) == pytest.approx(0, abs=0.02)
    for mean, std in ((0.5, 0.1), (0.5, 0.09), (0.0, 0.09)):  # means, precisions or both say more than the prior
        known = {**prior, "w": gbp.Gaussian.from_moments(mean=jnp.full((200, 50), mean), std=std)}
        np.testing.assert_allclose(random_starts(parameters, known, seed=1)["w"], mean, rtol=1e-6)


@pytest.mark.parametrize("crop", [False, True])
def test_pictures_show_every_method(crop):
    images = {name: np.full((250, 310, 3), grey) for name, grey in (("clean", 0.5), ("noisy", 0.6), ("pairwise", 0.51))}
    figure = draw_pictures(images, crop=crop)
    shown = {ax.get_title(): ax.get_images()[0].get_array() for ax in figure.axes if ax.get_images()}
    assert list(shown) == ["clean", "noisy: 20.0 dB", "pairwise: 40.0 dB"]
    for array, grey in zip(shown.values(), (0.5, 0.6, 0.51)):
        np.testing.assert_allclose(array, grey)
        assert array.shape == ((130, 180, 3) if crop else (250, 310, 3))


def test_what_is_no_method_and_too_many_frames():
    with pytest.raises(ValueError, match=r"a method must be one of pairwise; .* got 'median'"):
        Video(("median",))
    with pytest.raises(ValueError, match="frames must be a number from 1 to 82, got 83"):
        Video(frames=83)


def test_a_new_frame_starts_from_as_much_of_the_old_as_alpha_says(bear):
    """Per frame: from the prior; with alpha 0: from the posterior."""
    x = load_bear(bear, clip=CLIP)[:1] / 255
    for alpha in (0.0, 1.0):
        learner = small(alpha=alpha).learner((*SIZE, 3), 0)
        learner.update(x)
        started = learner.filtering.next_prior(learner.state.posterior, learner.prior)
        expected = learner.prior if alpha else learner.posterior
        for name in expected:
            np.testing.assert_allclose(started[name].mean, expected[name].mean, atol=1e-6)
            np.testing.assert_allclose(started[name].std, expected[name].std, rtol=1e-5)
