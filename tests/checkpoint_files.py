"""What the tests of checkpoints share: small learners, and files that lie."""

import json
import subprocess
import sys

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.io import checkpoint
from gbplearn.io.container import sealed

X = np.random.default_rng(0).standard_normal((8, 2))
CLASSES = (X.sum(1) > 0).astype(int)
VALUES = X @ [1.0, -0.5]


def classifier(**options):
    net = gbp.Sequential(gbp.Dense(2, sigma=0.1), gbp.SoftmaxObservation(sigma=0.1), input_shape=(2,))
    return gbp.Learner(net, **{"iterations": 5, "dropout": 0.3, **options})


def regression():
    net = gbp.Sequential(gbp.Dense(1, sigma=0.1), gbp.GaussianObservation(sigma="learn"))
    return gbp.Learner(net, (2,), iterations=8, alpha=0.05, process_noise=0.01, forgetting=0.9)


def bits(*beliefs):
    return [np.asarray(part).tobytes() for g in beliefs for part in (g.eta, g.lam)]


def state(learner):
    return [
        *bits(*learner.posterior.values(), *learner.prior.values(), learner.input_prior),
        (learner.batches, learner.examples, learner.failures, learner.caution),
        (learner.noise, learner.state.sizes, learner.note),
        (learner.options, learner.filtering, learner.input_sigma, learner.parameters, learner.dtype, learner.seed),
        (learner.net.layers, learner.net.input_shape, learner.input_shape),
    ]


def there_and_back(learner, tmp_path, **options):
    learner.save(tmp_path / "run.safetensors")
    return gbp.Learner.load(tmp_path / "run.safetensors", **options)


def small_file():
    """Its bytes."""
    return checkpoint.encode(classifier(), {"data": "none", "batch": 4})


def parts(data):
    """Metadata facts, header without metadata, bytes of the tensors."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return json.loads(header.pop("__metadata__")["gbplearn"]), header, data[8 + length :]


def put_together(facts, header, body, **dump):
    """A file that lies, with a checksum that fits."""
    text = facts if isinstance(facts, str) else json.dumps(facts, **dump)
    head = {"__metadata__": {"gbplearn": text, "sha256": "0" * 64}, **header}
    raw = json.dumps(head, separators=(",", ":")).encode()
    return sealed(len(raw).to_bytes(8, "little") + raw + body)


def refused(data, tmp_path, saying=""):
    """The one line that says why."""
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(gbp.CheckpointError) as caught:
        gbp.Learner.load(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    assert saying in line
    assert "Error:" not in line  # an exception that was not foreseen
    return line


EVERY_LAYER = gbp.Sequential(
    gbp.GaussianObservation(sigma=gbp.LearnNoise(0.2, 3.0), name="pixels"),
    gbp.PairwiseSmoothing(sigma=0.5, robust=gbp.Huber(2.0, match="gradient"), robust_over=-1),
    gbp.Upsample2D((2, 1), sigma=0.3, robust=gbp.Tukey(1.5), robust_over=(2, 4)),
    gbp.ConvTranspose2D(3, kernel=(3, 2), robust=gbp.Tukey(3.0), robust_over=[1, 2, 3], borders="valid"),
    gbp.Prior(0.1, 2.0, name='odd "name"'),
    gbp.Conv2D(2, kernel=2, stride=(1, 2), activation=gbp.LeakyRelu(0.05), padding="same", weight_init=0.0),
    gbp.MaxPool2D(2),
    gbp.AvgPool2D((1, 2), robust=gbp.Huber(1.0)),
    gbp.Dense(2, activation="tanh", sigma=np.float64(0.1), direction="generative"),
    gbp.SoftmaxObservation(name="ütter"),
)


def run(program, path):
    """Of another interpreter, in which no annotation is checked."""
    command = [sys.executable, "-W", "ignore", "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
