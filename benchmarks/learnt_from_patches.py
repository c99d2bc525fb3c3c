"""What does learning the filters add to good ones? One convolution whose prior means are random or whitened patches.

    python benchmarks/learnt_from_patches.py mnist --data-dir FOLDER --examples 12800 --seeds 0 1 2

The network is that of `gbplearn experiment mnist --graph vector`; the filters are learnt, or kept at their
prior means. Each image once; read out by messages, 5,000 held-back training images. Adds a line a network and
seed to results/ledger.jsonl, and prints rows of a table.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import gbplearn as gbp
from gbplearn.apps import scores
from gbplearn.apps.data.images import Images, load_images
from gbplearn.apps.learning_curve import in_portions
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line
from gbplearn.core.progress import progress

LEDGER = Path(__file__).parent.parent / "results" / "ledger.jsonl"
BATCH, HELD_BACK = 50, 5000
POINTS = 200, 800, 3200, 12800
# Standard deviation of the prior of what is kept: it hardly moves.
KEPT = 1e-4
STARTS = {"random": 0.2, "patches": "patches"}


def network(start: str, learnt: bool, filters: int) -> gbp.Sequential:
    """The filters' prior means are random or patches, and they are learnt or kept."""
    prior = 0.3 if learnt else KEPT
    conv = gbp.Conv2D(
        filters, kernel=5, activation="leaky_relu", weight_prior=prior, bias_prior=prior, weight_init=STARTS[start]
    )
    head = gbp.Dense(10, weight_prior=0.15, bias_prior=0.15, prior=50.0, weight_init=0.0, length_scale=2.0)
    return gbp.Sequential(conv, gbp.MaxPool2D(2), head, gbp.CategoricalObservation())


def learn(found: Images, net: gbp.Sequential, examples: int, seed: int) -> dict[str, float]:
    """One pass."""
    order = np.random.default_rng(seed).permutation(len(found.train_y))
    held, order, out, cpu = np.sort(order[:HELD_BACK]), order[HELD_BACK:][:examples], {}, 0.0
    learner, y = gbp.Learner(net, found.train_x.shape[1:], seed=seed), found.train_y[held]
    for i in progress(range(0, len(order), BATCH), f"seed {seed}"):
        rows, begin = order[i : i + BATCH], time.process_time()
        learner.update(found.train_x[rows], found.train_y[rows])
        cpu += time.process_time() - begin
        if i + BATCH in (*POINTS, len(order)):
            p = in_portions(learner.predict_proba, found.train_x[held])
            out |= {f"accuracy/{i + BATCH}": scores.accuracy(p, y)}
            out |= {f"negative log likelihood/{i + BATCH}": scores.negative_log_likelihood(p, y)}
    out |= {"refused batches": float(learner.failures), "CPU seconds a batch": cpu / -(-len(order) // BATCH)}
    return out


def main() -> None:
    gbp.cache_programs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("mnist", "fashion-mnist", "cifar10"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--examples", type=int, default=POINTS[-1])
    parser.add_argument("--filters", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    found = load_images(given.data, given.data_dir).centred()
    for start in STARTS:
        for learnt in (False, True):
            each = []
            for seed in given.seeds:
                clock, net = Clock(), network(start, learnt, given.filters)
                each.append(learn(found, net, given.examples, seed))
                chosen = {"data": given.data, "network": repr(net), "examples": given.examples, "batch": BATCH}
                read_out = dict.fromkeys(each[-1], "messages, parameters fixed")
                append_to_ledger(LEDGER, ledger_line("learnt-from-patches", chosen, seed, each[-1], read_out, clock))
            mean = {name: np.mean([e[name] for e in each]) for name in each[0]}
            cells = [f"{v:.1%}" if name.startswith("acc") else f"{v:.3f}" for name, v in mean.items()]
            print(f"| {given.data}, {start}, {'learnt' if learnt else 'kept'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
