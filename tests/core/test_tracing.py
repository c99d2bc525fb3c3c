"""Graphs and inference under JAX's transformations: refused in one line that says what to do instead."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp

UNIT = gbp.Gaussian.from_moments(jnp.zeros(2), jnp.ones(2))
NONE = np.array([True, False])


def solve(*, y=1.0, sigma=1.0, prior=UNIT, start=None, constant=None, h=lambda a: a, evidence=None, observed=None):
    graph = gbp.FactorGraph()
    x = graph.variable("x", (2,), prior=prior, start=start)
    z = graph.variable("z", (2,), prior=UNIT)
    graph.add(gbp.Factor(h, (x,), y=y, sigma=sigma, name="first"))
    others = (x, z) if constant is None else (x, z, constant)
    graph.add(gbp.Factor(lambda a, b, *_: a - b, others, y=0.0, sigma=1.0, name="pair"))
    if observed is not None:
        graph.observe("z", observed)
    return gbp.infer(graph, evidence=evidence)["x"].mean.sum()


def both(t):
    return jnp.stack([t, t])


CASES = {
    "y": (lambda t: solve(y=both(t)), "factor 'first': y is traced"),
    "y in a list": (lambda t: solve(y=[1.0, t]), "factor 'first': y is traced"),
    "sigma": (lambda t: solve(sigma=t), "factor 'first': sigma is traced"),
    "prior": (lambda t: solve(prior=gbp.Gaussian.from_moments(both(t), jnp.ones(2))), "variable 'x': prior is traced"),
    "start": (lambda t: solve(start=both(t)), "variable 'x': start is traced"),
    "constant": (lambda t: solve(constant=both(t)), "factor 'pair': argument 2 is traced"),
    "around h": (lambda t: solve(h=lambda a: t * a), "factor 'first': a value that h takes from around it is traced"),
    "observe": (lambda t: solve(observed=both(t)), "variable 'z': observed value is traced"),
    "evidence": (lambda t: solve(evidence={"z": both(t)}), "evidence of 'z' is traced"),
    "masked": (lambda t: solve(evidence={"z": (both(t), NONE)}), "evidence of 'z' is traced"),
    "mask": (lambda t: solve(evidence={"z": (np.zeros(2), both(t) > 0)}), "evidence of 'z' is traced"),
    "belief": (
        lambda t: solve(evidence={"z": gbp.Gaussian.from_moments(both(t), jnp.ones(2))}),
        "variable 'z': belief is traced",
    ),
}
TRANSFORMS = {
    "jit": lambda f: jax.jit(f)(1.0),
    "grad": lambda f: jax.grad(f)(1.0),
    "vmap": lambda f: jax.vmap(f)(jnp.arange(3.0)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_traced_is_named(case, transform):
    function, named = CASES[case]
    if (case, transform) == ("mask", "grad"):
        pytest.skip("whether a number is larger than another has no derivative: it is a number")
    with pytest.raises(TypeError) as error:
        TRANSFORMS[transform](function)
    line = str(error.value)
    assert line.startswith("gbp.FactorGraph is called while JAX traces" if transform == "jit" else named)
    assert "outside of JAX's transformations" in line
    assert "gbp.solve runs inside" in line
    assert "\n" not in line


def small():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (2,), prior=UNIT)
    graph.add(gbp.Factor(lambda a: a, (x,), y=1.0, sigma=1.0))
    return graph


def test_within_jit_nothing_is_a_number():
    """Not even where nothing of the graph is traced; `grad` and `vmap` leave such inference alone."""
    graph = small()

    def function(t):
        return t * gbp.infer(graph)["x"].mean.sum()

    with pytest.raises(TypeError, match=r"gbp\.infer is called while JAX traces the function around it") as error:
        jax.jit(function)(2.0)
    assert "\n" not in str(error.value)
    assert float(jax.grad(function)(2.0)) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(jax.vmap(function)(jnp.arange(3.0)), [0.0, 1.0, 2.0], atol=1e-5)


def test_a_loop_of_ones_own_does_it():
    """The closed form of two factors and two priors."""
    for y in (0.0, 1.5):
        # Precision of x: 1 + 1 + 1 / 2, since z says N(0, 1) over a factor of variance 1.
        assert float(solve(y=y)) == pytest.approx(2 * y / 2.5, abs=1e-3)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_data_that_are_traced_belong_to_solve(transform):
    """What the message says to do, done: of two equal factors of variance 1, the mean of x is y / 2 each."""
    graph = small()
    program, data = gbp.compile(graph), graph.data()

    def given(t):
        return data.replace(y={"factor": t})

    with pytest.raises(TypeError, match=r"^(infer: data is traced|gbp\.infer is called while JAX traces)") as error:
        TRANSFORMS[transform](lambda t: gbp.infer(program, data=given(t))["x"].mean.sum())
    assert "gbp.solve runs inside" in str(error.value)
    expected = {"jit": 1.0, "grad": 1.0, "vmap": [0.0, 1.0, 2.0]}[transform]
    found = TRANSFORMS[transform](lambda t: gbp.solve(program, given(t))["x"].mean.sum())
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_graph_is_compiled_outside():
    graph = small()
    with pytest.raises(TypeError, match=r"gbp\.compile is called while JAX traces .* compile the graph once, outside"):
        jax.jit(lambda t: gbp.solve(gbp.compile(graph), graph.data().replace(y={"factor": t}))["x"].mean)(1.0)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("what", ["x", "y", "sample_weight", "x_prior", "predict"])
def test_learners_take_numbers(what, transform):
    learner = gbp.Learner(gbp.Sequential(gbp.Dense(1), gbp.GaussianObservation(), input_shape=(2,)), iterations=2)
    x, y = np.ones((3, 2)), np.ones((3, 1))
    calls = {
        "x": lambda t: learner.update(t * jnp.ones((3, 2)), y).energy,
        "y": lambda t: learner.update(x, t * jnp.ones((3, 1)), y_observed=np.ones(3, bool)).energy,
        "sample_weight": lambda t: learner.update(x, y, sample_weight=t * jnp.ones(3)).energy,
        "x_prior": lambda t: (
            learner.update(
                x,
                y,
                x_observed=np.ones(3, bool),
                x_prior=gbp.Gaussian.from_moments(t * jnp.ones((3, 2)), jnp.ones((3, 2))),
            ).energy
        ),
        "predict": lambda t: learner.predict(t * jnp.ones((3, 2))).mean.sum(),
    }
    with pytest.raises(TypeError, match=r"^(x|y|sample_weight|x_prior) is traced by jax\.jit, jax\.vmap or jax\.grad"):
        TRANSFORMS[transform](calls[what])
    assert learner.batches == 0
