"""Small learners and what they learn from; networks are tiny and share their programs."""

import numpy as np

import gbplearn as gbp

SIGMA, SEEN, WIDE = 0.1, 0.2, 4.0
HOW = {"sigma": SIGMA, "weight_prior": 0.8, "bias_prior": 0.5, "prior": WIDE}


def classifier(**options):
    net = gbp.Sequential(
        gbp.Dense(3, activation="tanh", **HOW), gbp.Dense(2, **HOW), gbp.SoftmaxObservation(sigma=0.2), input_shape=(2,)
    )
    order = gbp.Order("dense", "dense_1", "softmax")  # less to compile than forth and back
    return gbp.Learner(net, **{"iterations": 20, "tolerance": 0.0, "schedule": order, "guard": False, **options})


def images():
    net = gbp.Sequential(
        gbp.Conv2D(2, kernel=2, activation="leaky_relu", sigma=0.1, weight_prior=0.5),
        gbp.MaxPool2D(2, sigma=0.1),
        gbp.Dense(2, sigma=0.1, weight_prior=0.5),
        gbp.SoftmaxObservation(sigma=0.2),
        input_shape=(3, 3, 1),
    )
    return gbp.Learner(net, iterations=20)


def line(**options):
    """Two outputs of three features."""
    layers = gbp.Dense(2, **HOW, weight_init=0.0), gbp.GaussianObservation(sigma=SEEN)
    how = {"iterations": 300, "tolerance": 1e-6, "damping": 0.3, **options}
    return gbp.Learner(gbp.Sequential(*layers, input_shape=(3,)), **how)


def points(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 2))
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


def measured(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 3))
    return x, x @ rng.standard_normal((3, 2)) + SEEN * rng.standard_normal((n, 2))


def assert_same(a, b, tolerance):
    """Beliefs by name: means and standard deviations."""
    for name in a:
        np.testing.assert_allclose(a[name].mean, b[name].mean, rtol=0, atol=tolerance)
        np.testing.assert_allclose(a[name].std, b[name].std, rtol=0, atol=tolerance)


def copies(beliefs):
    return {n: (np.array(b.eta), np.array(b.lam)) for n, b in beliefs.items()}


# Batches.
