"""MNIST's first 400 images: what the stream costs, and what could be had at all.

    python benchmarks/first_400.py --data-dir FOLDER

For each seed, test accuracy on all 10,000 images of

- the stream: eight batches of 50 (read out by messages, and by a forward pass),
- one batch of all 400, which nothing needs to be handed on from (forward pass),
- ridge regression on the features of the stream's filters, with all 400 images at once and the regulariser that is
  best *on the test set*: an upper bound for any way to learn the last layer,
- logistic regression on the pixels.

Adds a line for each seed to results/ledger.jsonl.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

import gbplearn as gbp
from gbplearn.apps.data.images import Images, load_images
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line
from gbplearn.network.zoo import paper_classifier

LEDGER = Path(__file__).parents[1] / "results" / "ledger.jsonl"
IMAGES, ITERATIONS = 400, 150
JOINT = gbp.Damping(parameters=0.99, activations=0.5)  # what so large a batch needs
JOINT_ITERATIONS = 400


def best_ridge(train: np.ndarray, classes: np.ndarray, test: np.ndarray, truth: np.ndarray) -> float:
    """The best accuracy over regularisers, which the test set chooses."""
    targets, found = np.eye(10)[classes] - 0.1, []
    gram = train @ train.T + 1
    for ridge in 10.0 ** np.arange(-3, 4):
        weights = np.linalg.solve(gram + ridge * np.eye(len(train)), targets)
        found.append(((test @ (train.T @ weights) + weights.sum(0)).argmax(1) == truth).mean())
    return float(max(found))


def run(data: Images, seed: int) -> dict[str, float]:
    rows = np.random.default_rng(seed).permutation(3200)[:IMAGES]  # the seed's first ones, as benchmarks/messages.py
    x, y, test = data.train_x[rows], data.train_y[rows], np.asarray(data.test_x)

    def accuracy(outputs: np.ndarray) -> float:
        return float((np.asarray(outputs).argmax(1) == data.test_y).mean())

    stream = gbp.Learner(paper_classifier(), (28, 28, 1), iterations=ITERATIONS, strained="learn", seed=seed)
    for i in range(0, IMAGES, 50):
        stream.update(x[i : i + 50], y[i : i + 50])
    joint = gbp.Learner(
        paper_classifier(), (28, 28, 1), iterations=JOINT_ITERATIONS, damping=JOINT, strained="learn", seed=seed
    )
    joint.update(x, y)

    def features(images: np.ndarray) -> np.ndarray:
        parts = [images[i : i + 1000] for i in range(0, len(images), 1000)]
        pools = [np.asarray(stream.net.forward(p, stream.posterior)["max_pool"]) for p in parts]
        return np.concatenate([p.reshape(len(p), -1) for p in pools])

    pixels = LogisticRegression(max_iter=1000).fit(x.reshape(IMAGES, -1), y)
    return {
        "stream/fixed": accuracy(stream.predict(test).mean),
        "stream/forward": accuracy(stream.forward(test)),
        "one batch/forward": accuracy(joint.forward(test)),
        "ridge on the stream's filters/best on the test set": best_ridge(features(x), y, features(test), data.test_y),
        "logistic regression on pixels/none": accuracy(pixels.predict_proba(test.reshape(len(test), -1))),
        "refused batches": float(stream.failures + joint.failures),
    }


def main() -> None:
    gbp.cache_programs()
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    data = load_images("mnist", given.data_dir)
    chosen = {"images": IMAGES, "iterations": ITERATIONS, "joint iterations": JOINT_ITERATIONS}
    for seed in range(given.seeds):
        clock = Clock()
        metrics = run(data, seed)
        print(seed, metrics, flush=True)
        read_out = {"fixed": "GBP, parameters fixed at their means", "forward": "a forward pass, no messages"}
        append_to_ledger(LEDGER, ledger_line("mnist-first-400", chosen, seed, metrics, read_out, clock))


if __name__ == "__main__":
    main()
