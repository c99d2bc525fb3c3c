"""The command line: what it writes, and how it refuses."""

import importlib.util
import subprocess
import sys

import pytest

import gbplearn as gbp
from gbplearn.apps import cli
from gbplearn.core import files


def only_line(text):
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


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


def test_as_a_module():
    words = [sys.executable, "-m", "gbplearn", "--version"]
    assert subprocess.run(words, capture_output=True, text=True).stdout == f"gbplearn {gbp.__version__}\n"


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
