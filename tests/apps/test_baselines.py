"""The networks that gradients train, to compare with."""

import jax
import numpy as np
import optax
import pytest

import gbplearn as gbp
from gbplearn.apps.baselines.cnn import GradientClassifier, choose, first_parameters, train_in_rounds
from gbplearn.apps.baselines.diagonal_ekf import DiagonalEKF


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
    [
        ({"rate": 0.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"rate": 0.1, "steps": 0}, "steps"),
        ({"rate": 0.1, "falls_over": 0}, "falls"),
        ({"rate": 0.1, "weight_decay": -1.0}, "weight_decay"),
        ({"rate": 0.1, "replay": 5, "replay_rate": float("inf")}, "replay_rate"),
        ({"rate": 0.1, "replay_steps": 2}, "buffer"),
        ({"rate": 0.1, "replay": -1}, "replay"),
    ],
)
def test_settings_that_make_no_sense(options, named):
    with pytest.raises(ValueError, match=named):
        GradientClassifier(network(), (6, 6, 1), **options)


def straight(seed, count):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 3)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int)


LINEAR = gbp.Sequential(gbp.Dense(2), gbp.SoftmaxObservation(), input_shape=(3,))


def test_a_buffer_as_large_as_a_batch_is_more_steps_on_that_batch():
    """The oldest make room: what is drawn after a batch is that batch, whatever came before."""
    x, y = straight(0, 12)
    one = GradientClassifier(LINEAR, rate=0.01, steps=1, replay=4, replay_steps=2)
    other = GradientClassifier(LINEAR, rate=0.01, steps=3)
    for i in (0, 4, 8):
        one.update(x[i : i + 4], y[i : i + 4])
        other.update(x[i : i + 4], y[i : i + 4])
    for name, value in one.parameters.items():
        assert np.allclose(value, other.parameters[name], atol=1e-6), name


def test_what_is_drawn_was_learnt_from_and_is_not_older_than_the_buffer():
    x, y = straight(0, 20)
    model, drawn = GradientClassifier(LINEAR, rate=0.01, replay=8, replay_steps=5, replay_rate=0.5), []
    step = model.step
    model.step = lambda *args: (drawn.append(args), step(*args))
    for i in range(0, 20, 4):
        model.update(x[i : i + 4], y[i : i + 4], y_observed=np.arange(4) > 0)
    assert len(drawn) == 5 * (1 + 5)
    place = {tuple(row): i for i, row in enumerate(x)}
    for number, (old_x, old_y, seen, rate, _) in enumerate(drawn):
        if number % 6 == 0:
            continue
        now = number // 6 * 4 + 4
        rows = [place[tuple(row)] for row in old_x]
        kept = [i for i in range(now) if i % 4][-8:]
        assert set(rows) <= set(kept)
        assert len(set(rows)) == len(rows) == min(4, len(kept))
        assert (old_y == y[rows]).all()
        assert seen.all()
        assert rate == 0.005


def test_weight_decay_is_that_of_adamw():
    x, y = straight(0, 8)
    model = GradientClassifier(LINEAR, rate=0.1, steps=4, weight_decay=0.3)
    values = dict(model.parameters)
    optimiser = optax.adamw(0.1, weight_decay=0.3)
    state = optimiser.init(values)
    for _ in range(4):
        grads = jax.grad(
            lambda v: optax.softmax_cross_entropy_with_integer_labels(LINEAR.forward(x, v)["dense"], y).mean()
        )(values)
        updates, state = optimiser.update(grads, state, values)
        values = optax.apply_updates(values, updates)
    model.update(x, y)
    for name, value in model.parameters.items():
        assert np.allclose(value, values[name], atol=1e-5), name


def test_training_in_rounds_sees_every_example_in_every_round():
    x, y = straight(0, 11)
    model, seen = GradientClassifier(LINEAR, rate=0.1), []
    model.update = lambda a, b: seen.append([int(np.flatnonzero((x == row).all(1))[0]) for row in a])
    train_in_rounds(model, x, y, batches=6, batch=5)
    for first in (0, 2, 4):  # two whole batches a round, one example is left out
        rows = seen[first] + seen[first + 1]
        assert len(set(rows)) == 10
    assert seen[:2] != seen[2:4]
    train_in_rounds(model, x[:3], y[:3], batches=2, batch=5)
    assert all(sorted(rows) == [0, 1, 2] for rows in seen[6:])


def test_generative_networks_are_refused():
    with pytest.raises(ValueError, match="generative"):
        GradientClassifier(gbp.Sequential(gbp.ConvTranspose2D(2, kernel=3)), (6, 6, 1), rate=0.1)


def test_a_falling_step_size_is_half_a_cosine():
    x, y = lines(0, 8)
    falling = GradientClassifier(network(), (6, 6, 1), rate=0.01, falls_over=4)
    rates = [0.01 * (1 + np.cos(np.pi * t / 4)) / 2 for t in range(6)]
    values = dict(falling.parameters)
    optimiser = optax.scale_by_adam()
    state = optimiser.init(values)
    for t in range(6):
        rate = rates[t] if t <= 4 else 0.0  # and stays there
        grads = jax.grad(
            lambda v: optax.softmax_cross_entropy_with_integer_labels(network().forward(x, v)["dense"], y).mean()
        )(values)
        updates, state = optimiser.update(grads, state)
        values = {n: values[n] - rate * updates[n] for n in values}
        falling.update(x, y)
    for name, value in falling.parameters.items():
        assert np.allclose(value, values[name], atol=1e-5), name


def test_the_kalman_filter_is_the_textbook_one():
    """A linear softmax, whose Jacobian is known: the equations with NumPy's own matrices, example after example."""
    net = gbp.Sequential(gbp.Dense(3), gbp.SoftmaxObservation())
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 2)).astype(np.float32), rng.integers(0, 3, 6)
    model = DiagonalEKF(net, (2,), prior_std=0.5, process_noise=0.1, seed=4)
    first = first_parameters(net, (2,), 4)
    m = np.concatenate([np.asarray(first["dense/bias"], float), np.asarray(first["dense/weight"], float).ravel()])
    v = np.full(9, 0.25)
    for a, c in zip(x, y):
        jacobian = np.concatenate([np.eye(3), np.kron(a, np.eye(3))], 1)  # biases, then weights row by row
        logits = jacobian @ m
        p = np.exp(logits) / np.exp(logits).sum()
        spread = np.diag(p) - np.outer(p, p)
        h = spread @ jacobian
        gain = np.diag(v) @ h.T @ np.linalg.inv(h @ np.diag(v) @ h.T + spread + 1e-3 * np.eye(3))
        m = m + gain @ (np.eye(3)[c] - p)
        v = v - np.diag(gain @ h @ np.diag(v)) + 0.1**2
    model.update(np.concatenate([x, x[:1]]), np.append(y, 99), y_observed=np.arange(7) < 6)
    np.testing.assert_allclose(model.mean, m, atol=1e-5)
    np.testing.assert_allclose(model.variance, v, rtol=1e-4)
    np.testing.assert_allclose(
        model.predict(x[:1])[0], np.concatenate([np.eye(3), np.kron(x[0], np.eye(3))], 1) @ m, atol=1e-5
    )


def test_the_kalman_filter_learns_rows_from_columns():
    (x, y), (test_x, test_y) = lines(0, 200), lines(1, 100)
    model = DiagonalEKF(network(), (6, 6, 1), prior_std=0.3, process_noise=0.01)
    before = model.variance.max()
    model.update(x, y)
    assert (model.predict(test_x).argmax(1) == test_y).mean() >= 0.9
    assert 0 < model.variance.min() < before


@pytest.mark.parametrize(
    ("options", "named"), [({"prior_std": 0.0}, "prior_std"), ({"prior_std": 1.0, "process_noise": -1.0}, "process")]
)
def test_settings_of_the_filter_that_make_no_sense(options, named):
    with pytest.raises(ValueError, match=named):
        DiagonalEKF(network(), (6, 6, 1), **options)
    with pytest.raises(ValueError, match="generative"):
        DiagonalEKF(gbp.Sequential(gbp.ConvTranspose2D(2, kernel=3)), (6, 6, 1), prior_std=0.1)
