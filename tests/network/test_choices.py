"""What "auto" chooses: activations of a learner, and what beliefs keep of each layer."""

import numpy as np
import pytest
from gbplearn.data.images import load_images

import gbplearn as gbp
from gbplearn.network.choices import choose_activations, choose_layers

HEAD = gbp.CategoricalObservation()


def families(net, shape):
    return [layer.posterior for layer in choose_layers(net, shape).layers if hasattr(layer, "posterior")]


@pytest.mark.parametrize(
    ("layers", "shape", "chosen"),
    [
        ((gbp.Conv2D(4, kernel=3), gbp.MaxPool2D(2), gbp.Dense(10)), (8, 8, 1), ["block", "shared"]),
        ((gbp.Conv2D(4, kernel=3), gbp.Dense(20), gbp.Dense(10)), (8, 8, 60), ["rotated", "rotated", "shared"]),
        ((gbp.Dense(20), gbp.Dense(10, posterior="block")), (9,), ["rotated", "block"]),
        ((gbp.Dense(10),), (7000,), ["diagonal"]),
        ((gbp.Dense(10, length_scale=1.0),), (70, 100, 1), ["rotated"]),
    ],
)
def test_a_family_for_each_layer_that_leaves_it_to_us(layers, shape, chosen):
    net = gbp.Sequential(*layers, HEAD)
    assert families(net, shape) == chosen
    assert [getattr(a, "units", 0) for a in net.layers] == [
        getattr(a, "units", 0) for a in choose_layers(net, shape).layers
    ]
    again = choose_layers(net, shape)
    assert choose_layers(again, shape) is again


def test_activations_are_vectors_where_they_can_be():
    def of(*layers, given=()):
        return choose_activations(gbp.Sequential(*layers), (6, 6, 1), given)

    assert of(gbp.Conv2D(2), gbp.Dense(3), HEAD) == "vector"
    assert of(gbp.Conv2D(2), gbp.Dense(3), HEAD, given=["damping"]) == "scalar"
    assert of(gbp.Conv2D(2), gbp.Dense(3), gbp.SoftmaxObservation()) == "scalar"
    assert of(gbp.Dense(3), gbp.GaussianObservation(sigma=0.1)) == "scalar"
    assert of(gbp.Conv2D(2, robust=gbp.Tukey(1.0)), gbp.Dense(3), HEAD) == "scalar"
    assert of(gbp.ConvTranspose2D(2), gbp.Dense(3), HEAD) == "scalar"


def test_layers_of_their_own_accord_keep_scalars_elsewhere():
    net = gbp.Sequential(gbp.Dense(3), HEAD, input_shape=(4,))
    assert set(net.priors()) == {"dense/weight", "dense/bias"}
    assert set(gbp.Learner(net, damping=0.5).posterior) == {"dense/weight", "dense/bias"}
    assert set(gbp.Learner(net).posterior) == {"dense/parameters"}


def test_axes_need_vector_activations():
    net = gbp.Sequential(gbp.Dense(3, posterior="rotated"), HEAD, input_shape=(4,))
    with pytest.raises(ValueError, match="'dense/parameters': posterior='rotated' needs vector activations"):
        gbp.Learner(net, activations="scalar")


@pytest.fixture(scope="module")
def digits():
    images = load_images("digits")
    return np.asarray(images.train_x[:600]), images.train_y[:600], np.asarray(images.test_x), images.test_y


def deep():
    return gbp.Sequential(
        gbp.Dense(40, "leaky_relu", weight_prior=None, gain=2.0),
        gbp.Dense(30, "leaky_relu", weight_prior=None, gain=2.0),
        gbp.Dense(10, weight_prior=0.5, weight_init=0.0, prior=30.0),
        gbp.CategoricalObservation(),
        input_shape=(8, 8, 1),
    )


def test_two_hidden_layers_learn_and_go_on_from_a_file(digits, tmp_path):
    x, y, test_x, test_y = digits
    learner = gbp.Learner(deep())
    before = learner.prior
    for i in range(0, 550, 50):
        assert learner.update(x[i : i + 50], y[i : i + 50], evidence=True).status.name == "CONVERGED"
    assert (np.asarray(learner.predict_proba(test_x)).argmax(1) == test_y).mean() > 0.85
    assert type(learner.posterior["dense/parameters"]).__name__ == "RotatedGaussian"
    assert all(gained > 0 for gained in learner.posterior.diff(gbp.Posterior(before)).values())
    learner.save(tmp_path / "run.safetensors")
    again = gbp.Learner.load(tmp_path / "run.safetensors")
    for each in (learner, again):
        each.update(x[550:], y[550:])
    np.testing.assert_array_equal(again.predict(test_x).mean, learner.predict(test_x).mean)
    np.testing.assert_array_equal(
        again.predict(test_x, parameters="random").std, learner.predict(test_x, parameters="random").std
    )


def test_axes_that_are_not_at_right_angles_are_no_checkpoint(digits, tmp_path):
    import safetensors.numpy as container

    x, y, *_ = digits
    learner = gbp.Learner(deep())
    learner.update(x[:50], y[:50])
    path = tmp_path / "run.safetensors"
    learner.save(path)
    tensors = container.load_file(path)
    name = "posterior/dense_1/parameters/axes"
    assert name in tensors
    from gbplearn.io import checkpoint

    held = dict(tensors)
    held[name] = 2 * held[name]
    with pytest.raises(ValueError, match="its axes are not at right angles"):
        checkpoint._check_means(held, checkpoint.Limits("float32"))
