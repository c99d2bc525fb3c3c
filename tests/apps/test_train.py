"""`gbplearn train` and `gbplearn inspect`."""

import json
import pathlib
import shutil

import pytest

import gbplearn as gbp
from browser import shows_in_a_browser
from checkpoint_files import small_file, state
from gbplearn.apps import cli, train


def only_line(text):
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


def check_report(folder, before):
    """What a run leaves behind; a run that was interrupted has the same curve."""
    results = json.loads((folder / "results.json").read_text())
    assert results["curve"] == before["curve"]
    assert [seen for seen, _ in results["curve"]] == [50, 100]
    assert results["curve"][-1][1] == results["metrics"]["test accuracy/forward"]
    assert results["metrics"] | {"learning, CPU seconds": 0} == before["metrics"] | {"learning, CPU seconds": 0}
    page = (folder / "report.html").read_text()
    assert f"{results['metrics']['test accuracy/messages']:.2%}" in page
    assert f"{50 * 10 * (64 + 1 + 1):,}" in page  # edges of a batch: weights, bias and output of each unit


@pytest.fixture
def small(monkeypatch):
    """A network that compiles quickly."""
    monkeypatch.setattr(
        train, "network", lambda shape, published: gbp.Sequential(gbp.Dense(10), gbp.SoftmaxObservation())
    )


WORDS = ["train", "--data", "digits", "--examples", "100", "--iterations", "60"]


def without_times(learner):
    """Its state; how long it took is no part of it."""
    learner.note = {name: value for name, value in learner.note.items() if not name.endswith("seconds")}
    return state(learner)


def test_train_interrupted_and_resumed_is_one_run(small, tmp_path, capsys, monkeypatch):
    whole, parted = tmp_path / "new" / "whole.safetensors", tmp_path / "parted.safetensors"
    monkeypatch.chdir(tmp_path)
    assert cli.main([*WORDS, "--checkpoint", str(whole)]) == 0
    told = capsys.readouterr().out
    first = json.loads(pathlib.Path("results/train-digits/results.json").read_text())
    assert "test accuracy" in told
    assert "learnt from 100 images in 2 batches" in told

    update = gbp.Learner.update

    def interrupted(self, *args):
        if self.batches == 1:
            self.batches = 17  # between two batches
            raise KeyboardInterrupt
        return update(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(gbp.Learner, "update", interrupted)
        assert cli.main([*WORDS, "--checkpoint", str(parted)]) == 130
    assert capsys.readouterr().err == "gbplearn: interrupted\n"
    half = gbp.Learner.load(parted)
    assert (half.batches, half.examples, half.note["seen"]) == (1, 50, 50)

    assert cli.main([*WORDS, "--checkpoint", str(parted), "--resume"]) == 0
    assert capsys.readouterr().out == told.replace(str(whole), str(parted))
    assert without_times(gbp.Learner.load(parted)) == without_times(gbp.Learner.load(whole))
    check_report(pathlib.Path("results/train-digits"), first)
    shutil.copy("results/train-digits/report.html", "page.html")

    assert cli.main(["inspect", str(whole)]) == 0
    described = capsys.readouterr().out
    assert "learnt: 2 batches, 100 examples, 0 failures" in described
    assert "note: data='digits', batch=50, published=False, seen=100, curve=" in described

    for words, named in (
        (["--batch", "20", "--resume"], "--batch 50, not 20"),
        (["--seed", "1", "--resume"], "--seed 0, not 1"),
        (["--iterations", "6", "--resume"], "--iterations 60, not 6"),
        (["--data", "mnist", "--resume"], "--data digits, not mnist"),
        (["--published", "--resume"], "it was trained without --published"),
        ([], "--resume"),
    ):
        assert cli.main([*WORDS, "--checkpoint", str(whole), *words]) == 2
        assert named in only_line(capsys.readouterr().err)

    # A checkpoint of an older version does not say what happened before it: nor does the report.
    old = gbp.Learner.load(whole)
    old.note = {name: old.note[name] for name in ("data", "batch", "seen")}
    old.save(tmp_path / "old.safetensors")
    (tmp_path / "results" / "train-digits" / "report.html").unlink()
    (tmp_path / "results" / "train-digits" / "report.html").mkdir()
    assert cli.main([*WORDS, "--checkpoint", str(tmp_path / "old.safetensors"), "--resume"]) == 0
    told = capsys.readouterr().out
    assert "test accuracy" in told
    assert "there is no report" in told  # a folder is in its way, which loses nothing else
    metrics = json.loads(pathlib.Path("results/train-digits/results.json").read_text())["metrics"]
    assert "iterations a batch" not in metrics
    assert metrics["test accuracy/messages"] == first["metrics"]["test accuracy/messages"]
    shows_in_a_browser("page.html", pictures=5)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--resume"], "--checkpoint"),
        (["--resume", "--checkpoint", "none"], "none: there is no such file"),
        (["--batch", "0"], "--batch"),
        (["--iterations", "0"], "--iterations"),
        (["--examples", "0"], "--examples"),
        (["--examples", "2000"], "1437"),
        (["--seed", "-1"], "--seed"),
        (["--data", "letters"], "letters"),
        (["--data", "mnist", "--data-dir", "none"], "none: there is no such folder"),
    ],
)
def test_train_refuses(words, named, small, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*WORDS, *words]) == 2
    assert named in only_line(capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_inspect_refuses(tmp_path, capsys):
    (tmp_path / "cut").write_bytes(small_file()[:100])
    assert cli.main(["inspect", str(tmp_path / "cut")]) == 2
    assert only_line(capsys.readouterr().err).startswith(f"gbplearn: {tmp_path / 'cut'}: it is cut off")


@pytest.mark.slow
def test_train_on_all_digits(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--data", "digits"]) == 0
    assert float(capsys.readouterr().out.split()[2].rstrip("%")) > 95
