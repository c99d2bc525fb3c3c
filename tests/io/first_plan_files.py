"""Writes what `test_first_plan.py` reads. To be run by the code of commit 01d8de2, the last of the first plan:

    python tests/io/first_plan_files.py FOLDER

(`first_plan.*` of that folder were then put here.)
"""

import pickle
import sys
from pathlib import Path

import numpy as np

import gbplearn as gbp


def main(folder: Path) -> None:
    rng, numbers = np.random.default_rng(0), {}
    x = rng.standard_normal((24, 2)).astype(np.float32)
    y = (x[:, 0] > x[:, 1]).astype(int)

    def note(name: str, learner: gbp.Learner) -> None:
        for parameter, belief in learner.posterior.items():
            for part in ("eta", "lam"):
                numbers[f"{name}: {parameter}: {part}"] = np.asarray(getattr(belief, part))

    hidden = gbp.Dense(3, activation="tanh", sigma=0.1)
    net = gbp.Sequential(hidden, gbp.Dense(2, sigma=0.1), gbp.SoftmaxObservation(sigma=0.1), input_shape=(2,))
    learner = gbp.Learner(net, iterations=20, record=True, seed=3)
    for count, rows in (("one", slice(0, 8)), ("two", slice(8, 16))):
        assert learner.update(x[rows], y[rows]).accepted
        note(f"after {count}", learner)
    learner.save(folder / "first_plan.safetensors")
    (folder / "first_plan_learner.pickle").write_bytes(pickle.dumps(learner))
    assert learner.update(x[16:], y[16:]).accepted
    note("after three", learner)
    learner.forget(0)
    note("without the first", learner)

    classifier = gbp.GBPClassifier((3,), iterations=40, passes=1, random_state=0).fit(x[:16], y[:16])
    note("classifier", classifier.learner_)
    numbers["probabilities"] = classifier.predict_proba(x[16:])
    (folder / "first_plan_classifier.pickle").write_bytes(pickle.dumps(classifier))
    note("classifier after more", classifier.partial_fit(x[16:], y[16:]).learner_)
    np.savez_compressed(folder / "first_plan.npz", x=x, y=y, **numbers)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
