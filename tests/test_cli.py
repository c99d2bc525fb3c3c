"""The command line: what it writes, and how it refuses."""

import importlib.util
import json

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn import cli
from gbplearn.demo import denoise, poses, run_demo
from gbplearn.experiments.regression import Regression
from gbplearn.experiments.xor import Xor
from gbplearn.report import files


def only_line(text):
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_demo_cleans_the_picture_and_straightens_the_path(tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    quick = {"iterations": 20, "test_iterations": 20}
    results = run_demo(
        out, seed=0, side=48, pose_count=50, xor=Xor(**quick), regression=Regression(**quick, points=10, noise_rounds=2)
    )
    printed = capsys.readouterr().out

    pictures = {f"{name}.{kind}" for name in ("denoise", "poses") for kind in ("png", "svg")}
    others = {"results.json", "report.html", "xor", "regression"}
    assert {p.name for p in out.iterdir()} == pictures | others  # and no partial file
    assert (out / "denoise.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (out / "poses.svg").read_bytes()
    assert str(out / "report.html") in printed

    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(results))
    assert results["experiment"] == "demo"
    assert results["settings"]["seed"] == 0
    picture, path = results["metrics"]["denoise"], results["metrics"]["poses"]
    assert picture["psnr_gbp"] > picture["psnr_noisy"] + 5
    assert picture["psnr_gbp"] > picture["psnr_median"]
    assert path["rmse_gbp"] < 0.5 * path["rmse_odometry"]
    assert picture["status"] == path["status"] == "converged"


def test_median_filter_takes_the_middle_of_nine():
    image = np.random.default_rng(0).random((5, 6))
    filtered = denoise.median_filter(image)
    assert filtered[2, 3] == np.median(image[1:4, 2:5])
    assert filtered[0, 0] == np.median(image[[0, 0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 1, 0, 0, 1]])


def test_psnr_of_a_known_error():
    assert denoise.psnr(np.full((4, 4), 0.6), np.full((4, 4), 0.5)) == pytest.approx(20.0)


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


def test_broken_write_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "results.json"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_whole(path, write)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gbplearn {gbp.__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"]])
def test_help_names_the_options(words, capsys):
    assert cli.main(words) == 0
    assert ("demo" if len(words) == 1 else "--seed") in capsys.readouterr().out


@pytest.mark.parametrize("inside", ["", "deeper/still"])
def test_out_that_is_a_file_is_refused(inside, tmp_path, capsys):
    file = tmp_path / "taken"
    file.write_text("mine")
    assert cli.main(["demo", "--out", str(file / inside)]) == 2
    assert only_line(capsys.readouterr().err) == f"gbplearn: {file} is a file, not a folder"
    assert file.read_text() == "mine"


def test_out_that_cannot_be_written_is_refused(capsys, monkeypatch, tmp_path):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    # Root may write everywhere, so a folder without permissions would not be refused in every place tests run.
    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    assert cli.main(["demo", "--out", str(tmp_path)]) == 2
    assert "cannot write" in only_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--seed", "one"], "--seed"),
        (["demo", "--colour", "red"], "--colour"),
        (["dmeo"], "dmeo"),
        ([], "demo"),
    ],
)
def test_words_that_make_no_sense(words, named, capsys):
    assert cli.main(words) == 2
    line = only_line(capsys.readouterr().err)
    assert line.startswith("gbplearn: ")
    assert named in line


def test_missing_extras(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["demo"]) == 2
    expected = 'gbplearn: the command line needs its extras: pip install "gbplearn[cli]"'
    assert only_line(capsys.readouterr().err) == expected


def test_interrupt(capsys, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.Demo, "run", interrupt)
    assert cli.main(["demo"]) == 130
    assert only_line(capsys.readouterr().err) == "gbplearn: interrupted"
