"""Forward passes without the engine; and programs that lower for other machines than this one."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import gbplearn as gbp
from gbplearn import native
from gbplearn.engine import loop
from gbplearn.engine.diagnostics import no_diagnostics
from gbplearn.engine.options import make_options
from gbplearn.engine.state import empty_state
from gbplearn.graph.poses import FREEDOM

SHAPE = (6, 6, 1)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, *SHAPE)).astype(np.float32)


def learner(head=True, **options):
    net = gbp.Sequential(
        gbp.Conv2D(2, kernel=3, activation="leaky_relu"),
        gbp.MaxPool2D(2),
        gbp.Dense(3, activation="tanh"),
        *([gbp.SoftmaxObservation()] if head else []),
    )
    return gbp.Learner(net, SHAPE, **options)


def by_hand(model, x):
    """The network in NumPy, with its posterior means."""
    w = {name: np.asarray(belief.mean, float) for name, belief in model.posterior.items()}
    windows = np.lib.stride_tricks.sliding_window_view(x[..., 0], (3, 3), axis=(1, 2))
    a = np.einsum("bijuv,uvc->bijc", windows, w["conv/weight"][:, :, 0]) + w["conv/bias"]
    a = np.where(a > 0, a, 0.2 * a).reshape(len(x), 2, 2, 2, 2, 2).max((2, 4))
    return np.tanh(a.reshape(len(x), -1) @ w["dense/weight"] + w["dense/bias"])


def test_forward_function_is_the_forward_pass_and_stays_it():
    model = learner()
    function = gbp.forward_function(model)
    expected = by_hand(model, X)
    assert np.allclose(jax.jit(function)(X), expected, atol=1e-5)
    moved = {n: gbp.Gaussian.from_moments(p.mean + 1, p.std) for n, p in model.posterior.items()}
    model.restore(dataclasses.replace(model.state, posterior=moved))
    assert np.allclose(function(X), expected, atol=1e-5)
    odds = gbp.forward_function(learner(), probabilities=True)(X)
    assert np.allclose(odds, np.exp(expected) / np.exp(expected).sum(1, keepdims=True), atol=1e-5)


def test_forward_function_can_be_differentiated():
    function = gbp.forward_function(learner())
    direction = RNG.standard_normal(X.shape).astype(np.float32)
    ahead, behind = (by_hand(learner(), X.astype(float) + t * direction) for t in (1e-6, -1e-6))
    slope = jax.jvp(function, (jnp.asarray(X),), (jnp.asarray(direction),))[1]
    assert np.allclose(slope, (ahead - behind) / 2e-6, atol=1e-3)


def test_exported_file_runs_without_gbplearn_on_any_batch(tmp_path):
    pytest.importorskip("flatbuffers")
    model, path = learner(), tmp_path / "net.stablehlo"
    gbp.export(model, path)
    np.save(tmp_path / "x.npy", X)
    script = """
import sys
sys.modules["gbplearn"] = None  # as if it was not installed
import numpy as np
from jax import export
loaded = export.deserialize(bytearray(open("net.stablehlo", "rb").read()))
x = np.load("x.npy")
assert loaded.platforms == ("cpu", "cuda", "tpu")
np.savez("y.npz", **{str(n): loaded.call(x[:n]) for n in (1, 3, 7)})
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=120)
    with np.load(tmp_path / "y.npz") as file:
        found = dict(file)
    for n in (1, 3, 7):
        assert np.allclose(found[str(n)], by_hand(model, X[:n]), atol=1e-5)


def test_exported_for_one_batch_size_as_probabilities(tmp_path):
    pytest.importorskip("flatbuffers")
    gbp.export(learner(), tmp_path / "net", platforms=("cpu",), batch=7, probabilities=True)
    loaded = jax_export.deserialize(bytearray((tmp_path / "net").read_bytes()))
    logits = by_hand(learner(), X)
    assert np.allclose(loaded.call(X), np.exp(logits) / np.exp(logits).sum(1, keepdims=True), atol=1e-5)
    with pytest.raises(ValueError, match="7"):
        loaded.call(X[:3])


def test_what_cannot_be_exported_leaves_nothing_behind(tmp_path):
    painter = gbp.Sequential(gbp.ConvTranspose2D(2, kernel=2), input_shape=SHAPE)
    refusals = [
        (gbp.Learner(painter), tmp_path / "net", {}, "generative"),
        (learner(head=False), tmp_path / "net", {"probabilities": True}, "SoftmaxObservation"),
        (learner(), tmp_path / "net", {"platforms": ("abacus",)}, "abacus"),
        (learner(), tmp_path / "net", {"platforms": ()}, "platforms"),
        (learner(), tmp_path / "net", {"batch": 0}, "batch"),
        (learner(), tmp_path / "missing" / "net", {}, "there is no folder"),
        (learner(), tmp_path, {}, "is a folder"),
    ]
    for model, path, options, text in refusals:
        with pytest.raises(ValueError, match=text) as told:
            gbp.export(model, path, **options)
        assert "\n" not in str(told.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="shape"):
        gbp.forward_function(learner())(X[:, :5])


def test_an_interrupted_export_keeps_the_old_file(tmp_path, monkeypatch):
    pytest.importorskip("flatbuffers")
    path = tmp_path / "net"
    path.write_bytes(b"old")

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr("gbplearn.core.files.os.fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        gbp.export(learner(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["net"]
    assert path.read_bytes() == b"old"


# Other machines


def lowered(graph, backend, platforms, messages, monkeypatch):
    """The loop of inference as a machine with that backend would compile it, in StableHLO for these platforms."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    problem = graph.problem(None, messages)
    options = make_options(graph, problem, gbp.Damping(parameters=0.8, activations=0.3), 0.0, None, 1)
    state = jax.eval_shape(lambda: empty_state(problem, jax.random.PRNGKey(0), False))
    enough = loop.Enough(jnp.asarray(0.0), jnp.asarray(-1.0))
    leaves, tree = jax.tree.flatten((problem, state, options, no_diagnostics(problem), jnp.asarray(5), enough))
    program = jax.jit(lambda *x: jax.tree.leaves(loop.run.__wrapped__(*jax.tree.unflatten(tree, x))))
    # Raises where an operation has no rule for a platform, and at calls that are not known to be there.
    return jax_export.export(program, platforms=platforms)(*leaves).mlir_module()


def by_hand_graph():
    poses = np.array([[0.0, 0, 0], [1, 0, 1], [1, 1, 2]])
    edges, k = np.array([[0, 1], [1, 2], [0, 2]]), FREEDOM[3]
    information, fixed = np.tile(np.eye(k), (3, 1, 1)), np.zeros(3, bool)
    return gbp.PoseGraph(poses, edges, poses, information, fixed, np.arange(3)).graph(gbp.Tukey(3.0))


@pytest.mark.parametrize("what", ["train", "predict", "by hand"])
def test_inference_lowers_for_cuda_and_tpu(what, monkeypatch):
    net, y = learner().net, np.arange(7) % 3
    graph = {"train": lambda: net.graph(X, y), "predict": lambda: net.graph(X, parameters="random")}
    graph = graph.get(what, by_hand_graph)()
    for messages in ("pooled", "per-edge") if what == "train" else ("auto",):
        text = lowered(graph, "gpu", ["cuda", "tpu"], messages, monkeypatch)
        assert "stablehlo.while" in text
        assert "gbplearn_" not in text


@pytest.mark.skipif(not native.built(), reason="the kernels were not built: there is no C++ compiler")
def test_only_the_program_of_a_cpu_calls_the_kernels(monkeypatch):
    graph = learner().net.graph(X, np.arange(7) % 3)
    with pytest.raises(ValueError, match="gbplearn_matrix_pooled"):
        lowered(graph, "cpu", ["cpu"], "pooled", monkeypatch)
