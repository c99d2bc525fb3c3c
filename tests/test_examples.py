"""The scripts in examples/: what they compute, and that they run as a user runs them."""

import dataclasses
import importlib.util
import pathlib
import sys

import numpy as np
import pytest
from scipy.optimize import least_squares

import gbplearn as gbp

FOLDER = pathlib.Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


ask, denoise, poses, learn_sensor, g2o = (load(n) for n in ("ask", "denoise", "poses", "learn_sensor", "g2o"))


def test_images_of_classes_and_upside_down_digits():
    """Each class as it is drawn resembles the mean of its training images most; what is upside down is less likely."""
    result = ask.ask(ask.Settings(examples=200))
    digits = ask.load_images("digits")
    means = np.stack([np.asarray(digits.train_x)[digits.train_y == c].mean(0).ravel() for c in range(10)])
    alike = np.corrcoef(result.classes.reshape(10, -1), means)[:10, 10:]
    assert (alike.argmax(1) == np.arange(10)).sum() >= 8
    upright, turned = result.evidence
    assert np.median(turned) < np.median(upright) - 3
    np.testing.assert_allclose(result.filled[result.seen], result.truth[result.seen], atol=1e-5)
    assert (result.std[~result.seen] > 0.15).all()  # the noise of the layer
    assert len(ask.draw(result).axes) == 40


def test_denoise_beats_the_median_filter():
    result = denoise.denoise(0, denoise.Settings(side=48))
    found = result.metrics()
    assert found["psnr_gbp"] > found["psnr_noisy"] + 5
    assert found["psnr_gbp"] > found["psnr_median"]
    assert found["status"] == "converged"
    assert len(denoise.draw(result).axes) >= 6


def test_poses_straighten_the_path_and_are_drawn(tmp_path, capsys, monkeypatch):
    small = poses.Settings(poses=30, closures=8, wrong=1)
    monkeypatch.setattr(poses, "Settings", lambda: small)
    monkeypatch.setattr(sys, "argv", ["poses.py", str(tmp_path / "new")])
    poses.main()
    printed = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines() if "  " in line)
    assert float(printed["rmse_gbp"]) < 0.5 * float(printed["rmse_odometry"])
    assert printed["status"] == "converged"
    assert (tmp_path / "new" / "poses.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "new" / "poses.svg").read_bytes()


def test_median_filter_takes_the_middle_of_nine():
    image = np.random.default_rng(0).random((5, 6))
    filtered = denoise.median_filter(image)
    assert filtered[2, 3] == np.median(image[1:4, 2:5])
    assert filtered[0, 0] == np.median(image[[0, 0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 1, 0, 0, 1]])


def test_scene_is_the_same_each_time_and_has_edges_and_shades():
    image = denoise.scene(64)
    assert np.array_equal(image, denoise.scene(64))
    assert image.min() >= 0
    assert image.max() <= 1
    steps = np.abs(np.diff(image, axis=1))
    assert steps.max() > 0.3
    assert ((steps > 0) & (steps < 0.05)).mean() > 0.1


def test_true_path_has_no_residual_but_at_wrong_closures():
    exact = poses.Settings(odometry_sigma=(1e-9,) * 3, closure_sigma=(1e-9,) * 3)
    driven = poses.drive(0, exact)
    assert np.allclose(driven.start[:, :2], driven.path[:, :2], atol=1e-5)
    measured = poses.relative(driven.path[driven.pairs[:, 0]], driven.path[driven.pairs[:, 1]])
    off = np.linalg.norm((measured - driven.closures)[:, :2], axis=1)
    assert (off[~driven.wrong] < 1e-6).all()
    assert (off[driven.wrong] > 3).all()  # poses more than 5 m apart, said to be within sqrt(2) m
    assert driven.wrong.sum() == 4


def test_sensor_is_learnt_on_the_way():
    found = learn_sensor.find(0, learn_sensor.Settings(steps=60, iterations=400), baselines=False)
    numbers = found.metrics()
    assert numbers["rmse_learnt"] < 0.25 * numbers["rmse_odometry"]
    assert numbers["rmse_response"] < learn_sensor.Settings().reading_sigma
    assert len(learn_sensor.draw(found).axes) == 2


@pytest.mark.slow
def test_pose_graph_of_a_file_reaches_the_cost_of_least_squares(tmp_path, capsys, monkeypatch):
    town = g2o.manhattan(3, poses=20, side=3, closures=8)
    gbp.write_g2o(tmp_path / "town.g2o", town)
    monkeypatch.setattr(sys, "argv", ["g2o.py", "--file", str(tmp_path / "town.g2o"), str(tmp_path / "new")])
    g2o.main()
    root = np.sqrt(np.diagonal(town.information, axis1=1, axis2=2))

    def residuals(x):
        poses = np.concatenate([town.poses[:1], x.reshape(-1, 3)])
        return (root * dataclasses.replace(town, poses=poses).errors()).ravel()

    best = 2 * least_squares(residuals, town.poses[1:].ravel()).cost
    assert best < 0.5 * town.chi2()
    assert gbp.read_g2o(tmp_path / "new" / "found.g2o").chi2() == pytest.approx(best, rel=1e-3)
    assert f"-> {best:.3g}" in capsys.readouterr().out
    assert (tmp_path / "new" / "g2o.png").read_bytes().startswith(b"\x89PNG")


def test_a_bad_pose_graph_ends_with_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "bad.g2o").write_text("VERTEX_SE2 0 0 0\n")
    monkeypatch.setattr(sys, "argv", ["g2o.py", "--file", str(tmp_path / "bad.g2o"), str(tmp_path)])
    with pytest.raises(SystemExit):
        g2o.main()
    assert "bad.g2o, line 1: VERTEX_SE2 has 4 numbers" in capsys.readouterr().err
