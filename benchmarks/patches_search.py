"""Settings of whitened patches for CIFAR10, on 5,000 training images that are held back; never test images.

    python benchmarks/patches_search.py IMAGES TRIAL ...

A trial is JSON: `{"patches": 200, "kernel": 6, ..., "weight_prior": 0.1, "length_scale": null}`; a line for each is
added to `patches_search.jsonl` beside this file. (In its first eleven lines `root` was False where it is not given.)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import gbplearn as gbp
from gbplearn.apps import scores
from gbplearn.apps.data.images import load_images
from gbplearn.apps.report.record import peak_memory_mb
from gbplearn.layers.whitened_patches import WhitenedPatches

RESULTS = Path(__file__).with_suffix(".jsonl")
BATCH, HELD_BACK = 50, 5_000
_HEAD = ("weight_prior", "bias_prior", "prior", "length_scale", "hidden", "gain", "hidden_prior")


def trial(images: int, how: dict[str, Any]) -> dict[str, float]:
    """One pass over so many images, and scores of those that are held back."""
    data = load_images("cifar10", Path.home() / ".cache/gbp-data").centred()
    order = np.random.default_rng(0).permutation(len(data.train_y))
    held, order = order[:HELD_BACK], order[HELD_BACK : HELD_BACK + images]
    head = {name: how[name] for name in _HEAD if name in how}
    features = WhitenedPatches(**{name: value for name, value in how.items() if name not in _HEAD})
    begin = time.process_time()
    fitted = features.fit(data.train_x[order[:BATCH]], 0)
    x, test = (features.computed(data.train_x[rows], fitted, np.dtype(np.float32)) for rows in (order, held))
    mapped = time.process_time() - begin
    hidden = head.pop("hidden", 0)
    gain, hidden_prior = head.pop("gain", 1.0), head.pop("hidden_prior", None)
    layers = [gbp.Dense(hidden, "leaky_relu", weight_prior=hidden_prior, gain=gain, bias_prior=0.1)] if hidden else []
    last = {"weight_prior": 0.1, "prior": 50.0, **head}
    net = gbp.Sequential(*layers, gbp.Dense(10, weight_init=0.0, **last), gbp.CategoricalObservation())
    learner = gbp.Learner(net, x.shape[1:])
    begin, evidence, refused = time.process_time(), 0.0, 0
    for i in range(0, images, BATCH):
        report = learner.update(x[i : i + BATCH], data.train_y[order[i : i + BATCH]], evidence=not hidden)
        evidence += report.log_evidence or 0.0
        refused += not report.accepted
    learnt = time.process_time() - begin
    y, out = data.train_y[held], {}
    for read_out in ("fixed", "random"):
        parts = (learner.predict_proba(test[i : i + 1000], parameters=read_out) for i in range(0, HELD_BACK, 1000))
        p = np.concatenate([np.asarray(part) for part in parts])
        out |= {
            f"accuracy/{read_out}": scores.accuracy(p, y),
            f"nll/{read_out}": scores.negative_log_likelihood(p, y),
            f"ece/{read_out}": scores.expected_calibration_error(p, y),
        }
    return {
        **out,
        "evidence an image": evidence / images,
        "features, CPU s": mapped,
        "learning, CPU s": learnt,
        "refused": refused,
        "MB": peak_memory_mb(),
    }


if __name__ == "__main__":
    for text in sys.argv[2:]:
        found = {"images": int(sys.argv[1]), **json.loads(text), **trial(int(sys.argv[1]), json.loads(text))}
        line = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()})
        print(line, flush=True)
        with RESULTS.open("a") as file:
            file.write(line + "\n")
