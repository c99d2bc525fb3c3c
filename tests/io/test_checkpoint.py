"""Checkpoints: what is saved comes back bit for bit, and nothing else is believed."""

import dataclasses
import inspect
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import gbplearn as gbp
from checkpoint_files import (
    CLASSES,
    EVERY_LAYER,
    VALUES,
    X,
    bits,
    classifier,
    regression,
    run,
    small_file,
    state,
    there_and_back,
)
from gbplearn.io import checkpoint, values
from gbplearn.layers.layer import Layer
from gbplearn.layers.transposed_dense import TransposedDense


def test_every_layer_comes_back(tmp_path):
    # Saved in test_categorical.py, test_nodes.py, test_transposed.py and test_dropout.py.
    others = {gbp.CategoricalObservation, gbp.Add, gbp.Concatenate, gbp.Part, gbp.GlobalAvgPool2D}
    others |= {gbp.Dropout, TransposedDense}
    assert {type(layer) for layer in EVERY_LAYER.layers} | others == set(values.LAYERS.values())
    learner = gbp.Learner(EVERY_LAYER, (6, 8, 1), input_prior=gbp.Gaussian.from_moments(np.zeros((8, 1)), std=0.5))
    again = there_and_back(learner, tmp_path)
    assert bits(*again.posterior.values(), *again.prior.values()) == bits(*learner.posterior.values()) * 2
    assert bits(again.input_prior) == bits(learner.input_prior)
    assert again.noise == {"pixels": gbp.LearnNoise(0.2, 3.0)}
    for old, new in zip(learner.net.layers, again.net.layers):
        for field in dataclasses.fields(old):
            a, b = getattr(old, field.name), getattr(new, field.name)
            assert (tuple(a) if isinstance(a, list) else a) == b
    assert again.net.input_shape is None
    held = checkpoint.describe(tmp_path / "run.safetensors")
    assert 'layer odd "name": Prior(mean=0.1, std=2.0, name=\'odd "name"\')' in held
    assert "parameter conv_transpose/weight 3x2x3x1" in held


def test_a_prior_that_follows_from_the_inputs_comes_back(tmp_path):
    """None where it may be, although it is not the default."""
    learner = gbp.Learner(gbp.Sequential(gbp.Dense(2, weight_prior=None), gbp.Dense(2)), (3,))
    again = there_and_back(learner, tmp_path)
    assert [layer.weight_prior for layer in again.net.layers] == [None, "auto"]
    assert bits(*again.prior.values()) == bits(*learner.prior.values())


def test_caution_comes_back(tmp_path):
    learner = gbp.Learner(gbp.Sequential(gbp.Dense(2)), (3,))
    learner.caution = 5
    assert there_and_back(learner, tmp_path).caution == 5


def test_every_builtin_layer_is_known():
    def below(cls):
        return {cls, *(c for sub in cls.__subclasses__() for c in below(sub))}

    public = {c for c in below(Layer) if getattr(gbp, c.__name__, None) is c and not inspect.isabstract(c)}
    assert public | {TransposedDense} == set(values.LAYERS.values())  # which users write as gbp.Tied


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": gbp.Sweep(), "damping": 0.25, "dropout": gbp.Damping(0.1, 0.2, dense=0.3)},
        {"schedule": gbp.RandomLayers(), "damping": gbp.Damping(by_name={"dense/weight": 0.5, "parameters": 0.1})},
        {"schedule": gbp.Residual(), "messages": "pooled", "guard": False, "tolerance": np.float64(1e-7)},
        {
            "schedule": gbp.Order("dense", "softmax", "dense"),
            "iterations": 7,
            "seed": 3,
            "parameters": "random",
        },
        {"input_sigma": 0.1, "alpha": 0.1, "process_noise": 0.2, "forgetting": 1 / 3, "dtype": "float32"},
        {"input_prior": gbp.Gaussian.flat((1, 2))},
    ],
    ids=lambda o: "-".join(o),
)
def test_settings_come_back(options, tmp_path):
    learner = classifier(**options)
    learner.note = {"data": "some", "batch": 4, "shape": (2, 3), "none": None}
    assert state(there_and_back(learner, tmp_path)) == state(learner)


def test_every_setting_of_the_learner_is_saved():
    given = set(inspect.signature(gbp.Learner.__init__).parameters)
    elsewhere = {"net", "input_shape", "features", "input_prior", "factors", "record"}  # the last is in the history
    assert given - {"self", *elsewhere} == set(checkpoint.SETTINGS)


@pytest.mark.parametrize(("make", "y"), [(classifier, CLASSES), (regression, VALUES)], ids=["dropout", "noise"])
def test_to_go_on_is_as_if_nothing_had_happened(make, y, tmp_path):
    whole, begun = make(), make()
    for learner in (whole, begun):
        learner.update(X[:4], y[:4])
        learner.predict(X[:4])
    again = there_and_back(begun, tmp_path)
    assert state(again) == state(whole)
    for learner in (whole, again):
        assert learner.update(X[4:], y[4:]).accepted
    assert state(again) == state(whole) != state(begun)
    assert bits(again.predict(X[4:])) == bits(whole.predict(X[4:]))


def test_float64_needs_the_64_bit_mode(tmp_path, x64):
    learner = classifier(dtype="float64")
    assert state(there_and_back(learner, tmp_path)) == state(learner)
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(gbp.CheckpointError, match="64"):
        gbp.Learner.load(tmp_path / "run.safetensors")
    assert "float64" in checkpoint.describe(tmp_path / "run.safetensors")


def test_factors_are_given_again(tmp_path):
    def tie(graph):
        pass

    learner = classifier(factors=tie)
    assert there_and_back(learner, tmp_path, factors=tie).factors is tie
    with pytest.raises(gbp.CheckpointError, match="give factors="):
        gbp.Learner.load(tmp_path / "run.safetensors")
    assert "factors" in checkpoint.describe(tmp_path / "run.safetensors")
    with pytest.raises(gbp.CheckpointError, match="without factors"):
        there_and_back(classifier(), tmp_path, factors=tie)


class OwnSchedule(gbp.Sweep):
    pass


@pytest.mark.parametrize(
    ("learner", "named"),
    [
        (gbp.Learner(gbp.Sequential(gbp.Dense(2, activation=jnp.sin)), (2,)), "'dense': activation.* function"),
        (classifier(schedule=OwnSchedule()), "schedule .*OwnSchedule"),
        (classifier(tolerance=float("inf")), "tolerance"),
        (classifier(iterations=0), "iterations cannot be 0"),
        (classifier(input_prior=gbp.Gaussian.from_moments(np.zeros(3), std=1.0)), "input_prior"),
    ],
    ids=["activation", "schedule", "infinity", "iterations", "prior"],
)
def test_what_cannot_be_saved_leaves_the_old_file(learner, named, tmp_path):
    path = tmp_path / "run.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match=named):
        learner.save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_without_safetensors(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match=r"gbplearn\[checkpoints\]"):
        classifier().save(tmp_path / "run.safetensors")


def test_the_file_is_a_safetensors_file():
    found = safetensors.numpy.load(small_file())
    assert found["posterior/dense/weight/lam"].shape == (2, 2)


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
import gbplearn as gbp
from gbplearn.core.files import write_whole
from gbplearn.io import checkpoint

path = Path(sys.argv[1])
net = gbp.Sequential(gbp.Dense(2), input_shape=(30_000,))
made = []
for n in range(2):
    learner = gbp.Learner(net, seed=n)
    made.append(checkpoint.encode(learner, {"which": n}))
began = time.monotonic()
write_whole(path, lambda file: file.write(made[0]))
took = time.monotonic() - began
random.seed(0)
torn, which = 0, []
for _ in range(50):
    ready, begin = os.pipe()
    child = os.fork()
    if child == 0:
        for n in range(10**6):
            write_whole(path, lambda file: file.write(made[(n + 1) % 2]))
            os.write(begin, b".")
    os.read(ready, 1)
    time.sleep(random.uniform(0, 3 * took))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready), os.close(begin)
    left = [p for p in path.parent.iterdir() if p != path]
    torn += len(left) > 0
    for p in left:
        p.unlink()
    which.append(checkpoint.decode(path.read_bytes()).note["which"])
print(torn, sum(which), gbp.Learner.load(path).note["which"] == which[-1])
"""


def test_killed_while_saving_the_old_file_or_the_new_is_there(tmp_path):
    torn, new, same = run(KILLER, tmp_path / "run.safetensors").split()
    assert int(torn) > 5  # it was killed while it wrote,
    assert 0 < int(new) < 50  # before and after files changed places,
    assert same == "True"  # and each time the file was whole
