"""The networks that gradients train, to compare with."""

import jax
import numpy as np
import optax
import pytest

import gbplearn as gbp
from gbplearn.baselines.cnn import GradientClassifier, choose


def network():
    return gbp.Sequential(
        gbp.Conv2D(3, kernel=3, activation="leaky_relu"), gbp.MaxPool2D(2), gbp.Dense(2), gbp.SoftmaxObservation()
    )


def lines(seed, count):
    """Images with a bright row (class 0) or column (class 1)."""
    rng = np.random.default_rng(seed)
    x, y = 0.1 * rng.standard_normal((count, 6, 6, 1)), rng.integers(0, 2, count)
    for image, is_column, place in zip(x, y, rng.integers(0, 6, count)):
        image[(slice(None), place) if is_column else place] += 1
    return x.astype(np.float32), y


def test_steps_are_those_of_optax_adam_on_the_cross_entropy():
    net, (x, y) = network(), lines(0, 8)
    model = GradientClassifier(net, (6, 6, 1), rate=0.01, steps=3, seed=1)
    values = dict(model.parameters)
    optimiser = optax.adam(0.01)
    state = optimiser.init(values)
    for _ in range(2 * 3):

        def loss(v):
            log_p = jax.nn.log_softmax(net.forward(x, v)["dense"])
            return -sum(log_p[i, c] for i, c in enumerate(y)) / len(y)

        updates, state = optimiser.update(jax.grad(loss)(values), state, values)
        values = optax.apply_updates(values, updates)
    for _ in range(2):
        model.update(x, y)
    for name, value in model.parameters.items():
        assert np.allclose(value, values[name], atol=1e-5), name


def test_it_learns_rows_from_columns_in_one_pass():
    (x, y), (test_x, test_y) = lines(0, 200), lines(1, 100)
    found = choose(network(), x, y, rates=(1e-5, 0.01), steps=(5,), batch=20)
    assert found["rate"] == 0.01  # the other hardly moves
    assert found["accuracy"] >= 0.9
    model = GradientClassifier(network(), (6, 6, 1), rate=0.01, steps=5)
    for i in range(0, 200, 20):
        model.update(x[i : i + 20], y[i : i + 20])
    assert (model.predict(test_x).argmax(1) == test_y).mean() >= 0.9


def test_hidden_labels_count_nothing():
    x, y = lines(0, 12)
    seen = np.arange(12) < 5
    one, other = (GradientClassifier(network(), (6, 6, 1), rate=0.01, steps=2) for _ in range(2))
    one.update(x, np.where(seen, y, -7), y_observed=seen)
    other.update(x[:5], y[:5])
    for name in one.parameters:
        assert np.allclose(one.parameters[name], other.parameters[name], atol=1e-6)
    before = dict(one.parameters)
    one.update(x, y, y_observed=np.zeros(12, bool))
    assert all(np.array_equal(one.parameters[n], before[n]) for n in before)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"rate": 0.0}, "rate"), ({"rate": float("nan")}, "rate"), ({"rate": 0.1, "steps": 0}, "steps")],
)
def test_settings_that_make_no_sense(options, named):
    with pytest.raises(ValueError, match=named):
        GradientClassifier(network(), (6, 6, 1), **options)


def test_generative_networks_are_refused():
    with pytest.raises(ValueError, match="generative"):
        GradientClassifier(gbp.Sequential(gbp.ConvTranspose2D(2, kernel=3)), (6, 6, 1), rate=0.1)
