"""Compiled programs are kept where the user wants them, and settings of JAX are the user's."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import gbplearn as gbp
from gbplearn.core import compiling, files

SETTINGS = ("compilation_cache_dir", "persistent_cache_min_compile_time_secs", "persistent_cache_min_entry_size_bytes")


@pytest.fixture
def no_folder():
    """As in a process in which nobody has named a folder yet."""
    before = {name: jax.config.values[f"jax_{name}"] for name in SETTINGS}
    jax.config.update("jax_compilation_cache_dir", None)
    compiling.log_once.cache_clear()
    yield
    for name, value in before.items():
        jax.config.update(f"jax_{name}", value)


def used():
    return jax.config.jax_compilation_cache_dir


def python(code, **environment):
    """Standard output and error lines of a new process in which every warning is an error."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    given["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # it compiles faster
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=given | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()


def test_programs_are_kept_in_the_users_folder(no_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GBPLEARN_CACHE", raising=False)
    assert gbp.cache_programs() == tmp_path / "gbplearn"
    assert used() == str(tmp_path / "gbplearn")
    assert gbp.cache_programs() == tmp_path / "gbplearn"  # as often as one likes


def test_the_environment_names_the_folder(no_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("GBPLEARN_CACHE", "0")
    assert gbp.cache_programs() is None
    assert used() is None
    monkeypatch.setenv("GBPLEARN_CACHE", str(tmp_path / "own"))
    assert gbp.cache_programs() == tmp_path / "own"
    assert used() == str(tmp_path / "own")


def test_a_folder_that_jax_has_already_stays(no_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("GBPLEARN_CACHE", str(tmp_path / "other"))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    before = dict(jax.config.values)
    assert gbp.cache_programs() == tmp_path / "mine"
    assert dict(jax.config.values) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["in the way", "not writable"])
def test_where_nothing_can_be_written_nothing_is_kept(kind, no_folder, monkeypatch, tmp_path, caplog):
    """One line says so, however often it is asked for. (Root may write everywhere: the system's refusal is played.)"""

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    if kind == "not writable":
        monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GBPLEARN_CACHE", str(tmp_path / ("file" if kind == "in the way" else "folder")))
    with caplog.at_level(logging.WARNING):
        assert gbp.cache_programs() is None
        assert gbp.cache_programs() is None
    (line,) = caplog.messages
    assert line.startswith("compiled programs are not kept: ")
    assert str(tmp_path) in line
    assert used() is None


SMALL = """
import jax, numpy as np, gbplearn as gbp

def work():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (2,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    graph.add(gbp.Factor(lambda a: a, (x,), y=1.0, sigma=1.0))
    assert abs(gbp.infer(graph)["x"].mean - 0.5).max() < 1e-6
"""
UNCHANGED = """
before = dict(jax.config.values)
work()
learner = gbp.Learner(gbp.Sequential(gbp.Dense(1), gbp.GaussianObservation(), input_shape=(2,)), iterations=2)
learner.update(np.ones((3, 2)), np.ones((3, 1)))
changed = {name for name, value in jax.config.values.items() if before[name] != value}
print(sorted(changed))
"""


def test_inference_and_learning_change_no_setting_of_jax(tmp_path):
    out, _ = python(SMALL + UNCHANGED, GBPLEARN_CACHE=str(tmp_path / "cache"))
    assert out == "[]\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="a folder in which root cannot write either")
def test_an_unwritable_folder_is_one_line_and_no_error():
    out, lines = python(SMALL + "print(gbp.cache_programs())\nwork()\n", GBPLEARN_CACHE="/proc/self/task")
    assert out == "None\n"
    assert len(lines) == 1
    assert "/proc/self/task" in lines[0]


def test_the_command_line_keeps_programs(no_folder, monkeypatch, tmp_path):
    from gbplearn.apps import cli

    monkeypatch.setenv("GBPLEARN_CACHE", str(tmp_path / "own"))
    found = []
    monkeypatch.setattr(cli.Demo, "run", lambda self: found.append(used()))
    assert cli.main(["demo"]) == 0
    assert found == [str(tmp_path / "own")]


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("GBPLEARN_CACHE", str(tmp_path))
    code = """if True:
        import jax, numpy as np, gbplearn as gbp
        compiled = []
        jax.monitoring.register_event_listener(lambda event, **_: compiled.append(event))
        gbp.cache_programs()
        net = gbp.Sequential(gbp.Dense(2), gbp.GaussianObservation(), input_shape=(3,))
        gbp.Learner(net).update(np.ones((5, 3)), np.ones((5, 2)))
        print(sum("cache_misses" in e for e in compiled), sum("cache_hits" in e for e in compiled))
    """
    first, second = (
        [int(n) for n in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()]
        for _ in range(2)
    )
    assert list(tmp_path.iterdir())
    assert second[1] > first[1]
    assert second[1] >= 1
