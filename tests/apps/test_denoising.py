"""Pixels that hold nonsense: smoothness against a dense solve, switches against their densities, and both together."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import gbplearn as gbp
from gbplearn.apps.data.video import corrupt
from gbplearn.apps.denoising.best import Settings, denoise_best
from gbplearn.apps.denoising.denoiser import MARGIN, TILE, graph_of
from gbplearn.apps.denoising.smooth_graph import smooth_graph
from gbplearn.apps.denoising.switches import Cavity, local_scale, probability_intact, shape_of, weight_of
from gbplearn.apps.image_scores import psnr

SHAPE = (7, 9)


def differences(height, width):
    """Rows of the Laplacian inside and of second differences along the border, written out."""
    rows = []
    for i in range(height):
        for j in range(width):
            row = np.zeros((height, width))
            if 0 < i < height - 1 and 0 < j < width - 1:
                row[i, j] = -4
                row[i - 1, j] = row[i + 1, j] = row[i, j - 1] = row[i, j + 1] = 1
            elif 0 < i < height - 1:
                row[i, j], row[i - 1, j], row[i + 1, j] = -2, 1, 1
            elif 0 < j < width - 1:
                row[i, j], row[i, j - 1], row[i, j + 1] = -2, 1, 1
            rows.append(row.ravel())
    return np.array(rows)


def picture(height=24, width=32):
    """Shades of colours that belong together, an edge, and a little texture."""
    rows, columns = np.mgrid[:height, :width] / height
    rng = np.random.default_rng(3)
    light = 0.45 + 0.2 * np.sin(4 * rows + 3 * columns) + 0.2 * (columns + 0.3 * rows > 0.8)
    light = light + 0.01 * rng.standard_normal(light.shape)
    hue = np.stack([0.05 * rows, 0.03 * columns, -0.05 * rows], -1)
    return np.clip(light[..., None] * [1.0, 0.9, 0.8] + hue, 0, 1)


def test_messages_find_the_means_of_a_dense_solve(x64):
    rng = np.random.default_rng(0)
    image, scale, sigma = rng.random((*SHAPE, 2)), np.array([0.3, 0.02]), 0.05
    middle = np.array([0.2, 0.7])
    weight = rng.random(image.shape) * (rng.random(image.shape) < 0.8)
    rows = differences(*SHAPE)
    result = gbp.infer(smooth_graph(image, weight, sigma, scale, middle), iterations=400, damping=0.3, tolerance=1e-9)
    for k in (0, 1):
        known = np.diag(weight[..., k].ravel()) / sigma**2
        precision = known + rows.T @ rows / scale[k] + np.eye(len(known)) / 900
        dense = np.linalg.solve(precision, known @ image[..., k].ravel() + middle[k] / 900)
        np.testing.assert_allclose(np.ravel(result["image"].mean[..., k]), dense, atol=1e-5)


def test_an_image_too_small_for_a_second_difference():
    with pytest.raises(ValueError, match="at least 3 x 3 pixels, got 2 x 9"):
        denoise_best(np.zeros((2, 9, 3)))


def test_intact_or_not_is_bayes_rule():
    rng = np.random.default_rng(1)
    observed, mean, variance = rng.random((3, 4, 5, 2))
    scale, sigma, tail = rng.uniform(0.5, 2, (4, 5)), 0.3, 7.0
    found = probability_intact(observed, Cavity(mean, variance), sigma, scale, 0.2, tail)
    for i, j in np.ndindex(4, 5):
        spread = np.diag(scale[i, j] * (variance[i, j] + sigma**2))
        density = stats.multivariate_t.pdf(observed[i, j], mean[i, j], spread, df=tail)
        assert found[i, j] == pytest.approx(0.8 * density / (0.8 * density + 0.2))


def test_an_observation_counts_so_that_the_mean_is_that_of_the_mixture():
    intact, variance, sigma, z, m = np.array([[0.3, 0.9]]), np.array([[[0.02], [0.5]]]), 0.001, 0.8, 0.1
    precision = weight_of(intact, variance, sigma) / sigma**2
    mean = (precision * z + m / variance) / (precision + 1 / variance)
    np.testing.assert_allclose(mean[..., 0], intact * z + (1 - intact) * m)
    assert weight_of(np.array([[1.0]]), variance[:, :1], sigma) == 1.0  # no more than what it is


def test_what_is_usual_around_depends_on_others_alone():
    rng = np.random.default_rng(2)
    off, intact = rng.random((40, 40)), np.ones((40, 40))
    before = local_scale(off, intact)
    off[20, 20] = 1e6
    after = local_scale(off, intact)
    assert after[20, 20] == pytest.approx(before[20, 20], rel=1e-3)
    assert after[20, 22] > 100 * before[20, 22]
    intact[20, 20] = 0.0
    assert local_scale(off, intact)[20, 22] == pytest.approx(before[20, 22], rel=0.2)
    assert local_scale(off, None)[20, 22] < 2  # a median does not mind


def test_the_shape_of_a_covariance_among_nonsense():
    rng = np.random.default_rng(4)
    truth = np.array([[1.0, 0.9, 0.8], [0.9, 1.0, 0.9], [0.8, 0.9, 1.0]])
    residuals = rng.multivariate_normal(np.zeros(3), truth, 20000)
    residuals[:2000] = 100 * rng.standard_normal((2000, 3))
    found = shape_of(residuals)
    assert np.trace(found) == pytest.approx(3.0)
    plain = np.cov(residuals.T)
    expected = truth / np.linalg.det(truth) ** (1 / 3)
    error = np.abs(found / np.trace(found) - expected / np.trace(expected)).max()
    assert error < 0.1 * np.abs(plain / np.trace(plain) - expected / np.trace(expected)).max()


def test_a_shape_there_is_even_of_channels_that_are_all_alike_or_constant():
    alike = np.random.default_rng(5).standard_normal((500, 1)) * np.ones(3)
    values = np.linalg.eigvalsh(shape_of(alike))
    assert 0 < values[0] < 1e-3
    assert values[-1] == pytest.approx(3.0, rel=1e-3)
    for few in (np.zeros((100, 3)), np.zeros((0, 3))):
        np.testing.assert_allclose(shape_of(few), np.eye(3))


@pytest.mark.parametrize("kind", ["constant", "grey"])
def test_images_without_colours_are_cleaned(kind):
    grey = picture().mean(-1, keepdims=True) * np.ones(3)
    clean = np.full(grey.shape, 0.4) if kind == "constant" else grey
    noisy, mask = corrupt(clean[None], 0.1, seed=0)
    for image in (clean, noisy[0]):
        found = denoise_best(image)
        assert all(np.isfinite(a).all() for a in found[:3])
        assert psnr(found.mean, clean) > 30
    assert found.corrupt[mask[0]].mean() > 0.9


def test_settings_and_masks_that_leave_nothing():
    with pytest.raises(ValueError, match="rounds must be a whole number >= 2, got 1"):
        Settings(rounds=1)
    for wrong in ({"share": 0.0}, {"sigma": 0.0}, {"beside": ("prev",)}):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must"):
            dataclasses.replace(Settings(), **wrong)
    with pytest.raises(ValueError, match="order must be 1 or 2, got 3"):
        Settings(order=3)
    with pytest.raises(ValueError, match="all pixels of an image, or of a tile of a large one, are missing"):
        denoise_best(picture(), np.zeros(picture().shape[:2], bool))


def test_nonsense_is_found_and_replaced():
    clean = picture()
    noisy, mask = corrupt(clean[None], 0.1, seed=0)
    found = denoise_best(noisy[0])
    wrong = found.corrupt > 0.5
    assert (wrong & ~mask[0]).sum() <= 0.01 * mask.size
    assert (mask[0] & ~wrong).sum() <= 0.1 * mask.sum()
    assert psnr(found.mean, clean) > psnr(noisy[0], clean) + 12
    np.testing.assert_allclose(found.mean[~wrong], noisy[0][~wrong], atol=0.02)
    # Standard deviations of what was replaced are those of its errors, within a factor of two.
    error = (found.mean - clean)[wrong & mask[0]]
    assert 0.5 < np.sqrt(np.mean((error / found.std[wrong & mask[0]]) ** 2)) < 2
    grey = Settings(colours=False)
    assert psnr(denoise_best(noisy[0], settings=grey).mean, clean) < psnr(found.mean, clean)


def test_a_detector_may_say_where_to_begin():
    """Told the truth, or three errors in ten, it ends where it ends by itself."""
    clean = picture()
    noisy, mask = corrupt(clean[None], 0.1, seed=0)
    alone = denoise_best(noisy[0])
    wrong = np.random.default_rng(7).random(mask[0].shape) < 0.3
    for told in (~mask[0], ~mask[0] ^ (wrong & mask[0])):
        found = denoise_best(noisy[0], first=told.astype(float))
        assert ((found.corrupt > 0.5) == (alone.corrupt > 0.5)).mean() > 0.99
        assert abs(psnr(found.mean, clean) - psnr(alone.mean, clean)) < 1.5


def test_missing_pixels_are_filled_in_and_nothing_else_is_touched():
    """As biharmonic inpainting does it: a dense solve."""
    clean = picture()
    seen = np.random.default_rng(5).random(clean.shape[:2]) < 0.7
    found = denoise_best(np.where(seen[..., None], clean, 0.0), seen)
    assert (found.corrupt[~seen] == 1).all()
    assert (found.corrupt[seen] < 0.5).all()
    rows, hole = differences(24, 32), ~seen.ravel()
    known = np.linalg.lstsq(rows[:, hole], -rows[:, ~hole] @ clean.reshape(-1, 3)[~hole], rcond=None)[0]
    assert np.abs(found.mean[~seen] - known).max() < 0.02
    np.testing.assert_allclose(found.mean[seen], clean[seen], atol=0.005)


def test_smoothness_of_first_order_is_a_dense_solve():
    """Differences of neighbours: the mean solves `(W / sigma² + D' D / scale) x = W z / sigma²`, pixel by pixel."""
    rng = np.random.default_rng(6)
    image, weight = rng.random((*SHAPE, 1)).astype(np.float32), (rng.random((*SHAPE, 1)) < 0.7).astype(np.float32)
    graph = smooth_graph(image, weight, 0.1, np.array([0.2]), np.array([0.5]), order=1)
    assert list(graph.factors) == ["pixels", "smooth/down", "smooth/right"]
    found = gbp.infer(graph, iterations=2000, tolerance=1e-6)["image"].mean[..., 0]
    units = np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    pairs = [*zip(units[:-1].ravel(), units[1:].ravel()), *zip(units[:, :-1].ravel(), units[:, 1:].ravel())]
    d = np.zeros((len(pairs), units.size))
    for row, (a, b) in enumerate(pairs):
        d[row, a], d[row, b] = -1, 1
    h = np.diag(weight.ravel() / 0.01) + d.T @ d / 0.2 + np.eye(units.size) / 900
    expected = np.linalg.solve(h, weight.ravel() / 0.01 * image.ravel() + 0.5 / 900)
    np.testing.assert_allclose(found.ravel(), expected, atol=1e-4)


def test_the_factors_of_a_frame_are_counted():
    height, width = 20, 30

    def groups_of(*what, **how):
        return {name: factor.factors for name, factor in graph_of(*what, **how).factors.items()}

    groups = groups_of("best-video", (height, width, 3))
    assert groups["pixels"] == groups["previous"] == groups["next"] == 3 * height * width
    assert groups["smooth/inside"] == 3 * (height - 2) * (width - 2)
    assert groups["smooth/top"] == 3 * (width - 2)
    assert "next" not in groups_of("best-video", (height, width, 3), alone=True)
    assert groups_of("best", (4000, 20, 1))["pixels"] == (TILE + 2 * MARGIN) * 20  # a tile of it
    assert groups_of("single-layer", (height, width, 3))["conv_transpose"] == 3 * height * width
