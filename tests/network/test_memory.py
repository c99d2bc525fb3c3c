"""How much memory a batch needs: told beforehand, and a batch that does not fit is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine import diagnostics, loop
from gbplearn.engine.options import make_options
from gbplearn.engine.state import empty_state


def images():
    layers = gbp.Conv2D(2, kernel=2), gbp.MaxPool2D(2), gbp.Dense(2), gbp.SoftmaxObservation()
    return gbp.Sequential(*layers, input_shape=(3, 3, 1))


def test_memory_grows_with_the_batch():
    net = images()
    for mode in ("per-edge", "pooled"):
        few, more, most = (net.memory(b)[mode] for b in (1000, 2000, 3000))
        assert 0 < few < more < most
        assert most - more == more - few
    sizes = net.memory(50)
    assert sizes["pooled"] < sizes["per-edge"]
    assert sizes["auto"] <= sizes["per-edge"]
    assert net.memory(4)["auto"] == net.memory(4)["per-edge"]


def test_a_batch_that_does_not_fit_is_refused_before_anything_is_allocated(monkeypatch):
    layers = gbp.Dense(3, activation="tanh"), gbp.Dense(2), gbp.SoftmaxObservation()
    student = gbp.Learner(gbp.Sequential(*layers, input_shape=(2,)))
    x, y = np.zeros((6, 2)), np.zeros(6, int)
    monkeypatch.setattr(student.net, "learn", lambda *a, **k: pytest.fail("it went on"))
    monkeypatch.setattr("gbplearn.network.memory.available_memory", lambda: student.net.memory(6)["auto"] - 1)
    with pytest.raises(MemoryError, match=r"a batch of 6 .* smaller batch"):
        student.update(x, y)
    assert student.batches == student.failures == 0
    monkeypatch.setattr("gbplearn.network.memory.available_memory", lambda: student.net.memory(6)["auto"])
    with pytest.raises(pytest.fail.Exception, match="it went on"):
        student.update(x, y)


def check_memory(net, batch, modes):
    """`net.memory` against the temporary arrays of the compiled program: within a factor of three, both ways."""
    x, y = np.zeros((batch, *net.input_shape)), np.zeros((batch, *net.shapes(net.input_shape)[net.output]))
    graph = net.graph(net.batch(x, y[:, 0] if isinstance(net.layers[-1], gbp.SoftmaxObservation) else y).padded(batch))
    for mode in modes:
        problem = graph.problem(None, mode)
        state = jax.eval_shape(lambda p=problem: empty_state(p, jax.random.PRNGKey(0), False))
        options = make_options(graph, problem, 0.5, 0.0, None, 1)
        numbers = diagnostics.no_diagnostics(problem), jnp.asarray(10), loop.Enough(jnp.asarray(1e-3))
        compiled = loop.run_in_place.lower(problem, state, options, *numbers).compile()
        used = compiled.memory_analysis().temp_size_in_bytes
        assert used / 3 < net.memory(batch)[mode] < 3 * used


def test_memory_is_about_what_the_program_uses():
    layers = gbp.Dense(20, activation="tanh"), gbp.GaussianObservation()
    check_memory(gbp.Sequential(*layers, input_shape=30), 64, ["per-edge"])


@pytest.mark.slow
@pytest.mark.parametrize("batch", [8, 32])
def test_memory_of_filters_is_about_what_the_program_uses(batch, monkeypatch):
    monkeypatch.setenv("GBPLEARN_NATIVE", "0")  # kernels need next to nothing beside the messages
    for filters, kernel, size in ((4, 3, (10, 10, 1)), (8, 5, (12, 12, 3))):
        layers = gbp.Conv2D(filters, kernel=kernel, activation="leaky_relu"), gbp.MaxPool2D(2), gbp.Dense(5)
        net = gbp.Sequential(*layers, gbp.SoftmaxObservation(), input_shape=size)
        check_memory(net, batch, ["per-edge", "pooled"])
