"""`gbplearn bench`: what it compares, and when it complains. (No test depends on what it times.)"""

from __future__ import annotations

import json

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.apps.bench import command, measure, report, workloads
from gbplearn.apps.cli import main

FOUND = {
    "CPU ms an iteration": 8.0,
    "wall ms an iteration": 5.0,
    "million messages a second": 3000.0,
    "CPU ms of the memory traffic alone": 2.0,
    "against memory traffic": 4.0,
    "compiling, CPU seconds": 3.0,
    "peak memory, MB": 400.0,
}
NAMED = {"reference": "Adam step", "CPU ms of the reference": 5.0, "against the reference": 1.6}


def test_traffic_by_hand():
    """A dense layer of 3 inputs and 2 outputs on 5 known examples, and the observation of its outputs."""
    net = gbp.Sequential(gbp.Dense(2), gbp.GaussianObservation(), input_shape=(3,))
    graph = net.graph(np.ones((5, 3)), np.ones((5, 2)))
    # Messages of 8 bytes are read and written, one is heard for each unit.
    units = {"weights": 6, "bias": 2, "outputs": 10}
    edges = {"weights": 10 * 3, "bias": 10, "outputs": 10}
    heard, observed = 8 * sum(units.values()), 16 * 10 + 8 * 10
    per_edge = 16 * sum(edges.values()) + heard
    pooled = 16 * sum(units.values()) + heard + 8 * 10  # and a reaction a factor
    assert workloads.traffic_of(graph.problem(None, "per-edge"), (0, 1)) == per_edge + observed
    assert workloads.traffic_of(graph.problem(None, "pooled"), (0, 1, 0)) == 2 * pooled + observed


def test_a_workload_sends_what_it_says():
    net = gbp.Sequential(gbp.Dense(2), gbp.GaussianObservation(), input_shape=(3,))
    graph = net.graph(np.ones((5, 3)), np.ones((5, 2)))
    work = workloads.workload_of(graph, gbp.Damping(0.5, 0.5), "per-edge", {})
    work.run(12)
    assert work.messages == 50 + 10


def test_rounds_are_timed_by_turns():
    order = []
    runs = {name: lambda count, name=name: order.append((name, count)) for name in "ab"}
    times = measure.by_turns(runs, repeats=3)
    assert times.keys() == {"a", "b"}
    timed = [name for name, count in order if count == 50]
    assert timed == ["a", "b"] * 3
    assert order[0] == ("a", 2)  # the warm-up


def test_only_ratios_that_are_half_as_large_again_are_regressions():
    baseline = {"one": {"against the reference": 1.0, "against memory traffic": 4.0}}
    found = {"one": {**FOUND, **NAMED}, "new": FOUND}
    assert report.regressions(found, baseline) == ["one: against the reference 1.60, was 1.00"]
    assert report.regressions(found, {"one": {"against the reference": 1.1}}) == []


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"b": "c"}}'])
def test_a_baseline_that_is_none_is_refused(text, tmp_path):
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"baseline\.json"):
        report.read_baseline(path)


def test_the_committed_baseline_is_sound(request):
    baseline = report.read_baseline(request.config.rootpath / "benchmarks" / "baseline.json")
    assert set(baseline) >= set(workloads.WORKLOADS)


def test_bench_from_the_command_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "measure_apart", lambda name, repeats: {**FOUND, **NAMED})
    baseline, out = tmp_path / "baseline.json", tmp_path / "bench"
    words = ["bench", "pairwise", "--out", str(out), "--baseline", str(baseline)]
    assert main([*words, "--gate"]) == 2  # there is none yet
    assert "there is no baseline" in capsys.readouterr().err
    assert main([*words, "--update"]) == 0
    assert "| pairwise | 8.00 | 5.00 | 3,000 | 1.60 | 4.0 | 3.0 | 400 MB |" in capsys.readouterr().out
    assert json.loads((out / "bench.json").read_text())["pairwise"]["reference"] == "Adam step"
    assert (out / "bench.png").stat().st_size > 0
    assert main([*words, "--gate"]) == 0
    baseline.write_text('{"pairwise": {"against the reference": 1.0}}')
    assert main([*words, "--gate"]) == 1
    assert "slower than the baseline: pairwise: against the reference 1.60, was 1.00" in capsys.readouterr().err


def test_bad_input_to_bench(capsys):
    assert main(["bench", "nonsense"]) == 2
    assert "there is no workload 'nonsense' (there are: mnist-train-pooled" in capsys.readouterr().err
    assert main(["bench", "pairwise", "--repeats", "0"]) == 2
