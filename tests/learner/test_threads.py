"""One learner and several threads; processes that were forked."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.network.batch import PREDICT_SIZES
from learners import classifier, copies, line, measured, points

LAYER, SEEN = 0.3, 0.4
FORKS = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")  # JAX's own, of the fork
import numpy as np
import gbplearn as gbp

net = gbp.Sequential(gbp.Dense(1, sigma=0.3), gbp.GaussianObservation(sigma=0.4), input_shape=(3,))
x = np.ones((4, 3))

def graph():
    graph = gbp.FactorGraph()
    v = graph.variable("v", (2,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    graph.add(gbp.Factor(lambda v: v, (v,), y=np.ones(2), sigma=1.0))
    return graph

def in_a_child(*calls):
    child = os.fork()
    if child == 0:
        signal.alarm(50)  # which ends it, if it waits for ever
        for call in calls:
            try:
                print("did", call(), flush=True)
            except RuntimeError as error:
                print("raised", error, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

gbp.FactorGraph()  # does not start JAX
in_a_child(lambda: gbp.infer(graph()).status.name)
learner = gbp.Learner(net)  # draws its prior, by JAX
made = graph()
learner._lock.__enter__()  # as a thread of the parent might
in_a_child(
    lambda: learner.update(x, x[:, :1]),
    lambda: learner.predict(x),
    lambda: learner.forget(0),
    lambda: gbp.infer(graph()),
    lambda: gbp.infer(made),
    lambda: gbp.init(made),
    lambda: learner.save(sys.argv[1]),
    lambda: gbp.Learner(net),
)
"""


def one_weight():
    """`y = w`, up to the noise of the layer and of the observation; the bias is known."""
    layer = gbp.Dense(1, sigma=LAYER, weight_prior=1.0, weight_init=0.0, bias_prior=1e-4, prior=1e3)
    net = gbp.Sequential(layer, gbp.GaussianObservation(sigma=SEEN), input_shape=(1,))
    return gbp.Learner(net, record=True, tolerance=1e-6, damping=0.0)


def in_threads(*work):
    """Run all at once; what one raises is raised."""
    errors, begin = [], threading.Barrier(len(work))

    def run(call):
        try:
            begin.wait(10)
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(w,)) for w in work]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)
    if errors:
        raise errors[0]


@pytest.fixture
def _often():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_often")
def test_two_threads_lose_no_update():
    """All batches are the same: their order does not matter."""
    learner, other, often = one_weight(), one_weight(), 15
    x, y = np.ones((1, 1)), np.ones((1, 1))

    def teach():
        for _ in range(often):
            assert learner.update(x, y).accepted

    in_threads(teach, lambda: learner.fit([(x, y)] * often))
    for _ in range(2 * often):
        other.update(x, y)
    assert (learner.batches, learner.examples) == (2 * often, 2 * often)
    assert [e.batch for e in learner.history()] == list(range(2 * often))
    precision = 1 + 2 * often / (LAYER**2 + SEEN**2)
    np.testing.assert_allclose(learner.posterior["dense/weight"].lam, precision, rtol=1e-3)
    for name, belief in learner.posterior.items():
        np.testing.assert_array_equal(belief.lam, other.posterior[name].lam)
        np.testing.assert_array_equal(belief.eta, other.posterior[name].eta)


@pytest.mark.usefixtures("_often")
def test_what_is_copied_or_saved_meanwhile_is_the_state_after_some_batch(tmp_path):
    learner, path = one_weight(), tmp_path / "run.safetensors"
    x, y = np.ones((1, 1)), np.ones((1, 1))
    found, after = [], {0: copies(learner.posterior)}

    def teach():
        for _ in range(10):
            learner.update(x, y)
            after[learner.batches] = copies(learner.posterior)

    def read():
        while learner.batches < 10:
            found.append(copy.copy(learner))
            learner.save(path)
            found.append(gbp.Learner.load(path))

    in_threads(teach, read)
    assert found
    for one in found:
        assert one.batches == one.examples == len(one.history())
        np.testing.assert_array_equal(copies(one.posterior)["dense/weight"], after[one.batches]["dense/weight"])


def test_a_prediction_knows_what_was_known_when_it_began(monkeypatch):
    """An update between two portions of it changes nothing."""
    learner = line()
    x, y = measured(20)
    learner.update(x[:10], y[:10])
    many = np.tile(x, (PREDICT_SIZES[-1] // 10, 1))
    before, infer, left = learner.predict(many), learner.net.infer, [x, x[::-1]]

    def interrupted(*args, **how):
        found = infer(*args, **how)
        if left:
            left.pop()
            assert learner.update(x[10:], y[10:]).accepted
        return found

    monkeypatch.setattr(learner.net, "infer", interrupted)
    during = learner.predict(many)
    assert not left
    np.testing.assert_array_equal(during.mean, before.mean)
    monkeypatch.undo()
    assert not np.array_equal(learner.predict(many).mean, before.mean)


def test_other_threads_do_not_see_a_batch_half_forgotten(monkeypatch):
    """While the batches after it are learnt again, the learner is what it was."""
    learner = classifier(record=True)
    x, y = points(30)
    batches = [(x[i : i + 10], y[i : i + 10]) for i in (0, 10, 20)]
    learner.fit(batches)
    before, update, states = copies(learner.posterior), gbp.Learner.update, []

    def noting(self, *args, **how):
        states.append(copies(learner.posterior))
        return update(self, *args, **how)

    monkeypatch.setattr(gbp.Learner, "update", noting)
    learner.forget(0, again=batches[1:])
    assert len(states) == 2
    for state in states:
        for name, parts in state.items():
            np.testing.assert_array_equal(parts, before[name])
    assert learner.batches == 2


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_go_their_own_way(how):
    learner = one_weight()
    x, y = np.ones((1, 1)), np.ones((1, 1))
    learner.update(x, y)
    before = copies(learner.posterior), learner.history(), learner.state.sizes
    with learner._lock:  # private: no public call holds it for as long as a test likes; that of a copy is free
        other = how(learner)
        in_threads(lambda: other.update(np.ones((3, 1)), np.ones((3, 1))))
    other.forget(0)
    assert [e.forgotten for e in other.history()] == [True, False]
    assert (learner.history(), learner.state.sizes) == before[1:]
    assert (learner.batches, other.examples) == (1, 3)
    np.testing.assert_array_equal(copies(learner.posterior)["dense/weight"], before[0]["dense/weight"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_forked_after_jax_has_started_says_so(tmp_path):
    """Where it would wait for ever."""
    path = tmp_path / "run.safetensors"
    home = os.path.dirname(os.path.dirname(gbp.__file__))
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(path)],
        env=os.environ | {"PYTHONPATH": home},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    before, *after = done.stdout.splitlines()
    assert before == "did CONVERGED"  # of a process that was forked earlier
    assert len(after) == 8
    for said in after:
        assert said.startswith("raised this process was forked after JAX had started")
        assert "multiprocessing.get_context('spawn') or 'forkserver'" in said
    assert not path.exists()
