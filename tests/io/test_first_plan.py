"""What the code of the first plan (commit 01d8de2) wrote, and the imports that it taught, go on working.

`first_plan_files.py` wrote the files, and the numbers to compare with.
"""

import importlib
import pathlib
import pickle

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn import moved

HERE = pathlib.Path(__file__).parent
NUMBERS = dict(np.load(HERE / "first_plan.npz"))
X, Y = NUMBERS["x"], NUMBERS["y"]


def from_checkpoint():
    return gbp.Learner.load(HERE / "first_plan.safetensors")


def from_pickle():
    return pickle.loads((HERE / "first_plan_learner.pickle").read_bytes())


def old_classifier():
    return pickle.loads((HERE / "first_plan_classifier.pickle").read_bytes())


def noted(name):
    """By parameter, eta and lam as the old code had them."""
    names = {key.split(": ")[1] for key in NUMBERS if key.startswith(f"{name}: ")}
    return {n: [NUMBERS[f"{name}: {n}: {part}"] for part in ("eta", "lam")] for n in names}


def assert_same_bits(learner, name):
    expected = noted(name)
    assert learner.posterior.keys() == expected.keys()
    for parameter, (eta, lam) in expected.items():
        np.testing.assert_array_equal(learner.posterior[parameter].eta, eta)
        np.testing.assert_array_equal(learner.posterior[parameter].lam, lam)


def assert_close(learner, name):
    """Up to the rounding of programs that are compiled in another way: in standard deviations, and of precisions."""
    for parameter, (eta, lam) in noted(name).items():
        found = learner.posterior[parameter]
        np.testing.assert_allclose(found.lam, lam, rtol=1e-3)
        np.testing.assert_array_less(np.abs(found.mean - eta / lam) * np.sqrt(lam), 1e-2)


@pytest.mark.parametrize("read", [from_checkpoint, from_pickle])
def test_an_old_learner_knows_what_it_knew_and_goes_on(read):
    learner = read()
    assert_same_bits(learner, "after two")
    assert (learner.batches, learner.examples, learner.failures) == (2, 16, 0)
    assert [(e.batch, e.examples, e.recorded) for e in learner.history()] == [(0, 8, True), (1, 8, True)]
    assert learner.update(X[16:], Y[16:]).accepted
    assert_close(learner, "after three")
    learner.forget(0)
    assert_close(learner, "without the first")
    assert [e.forgotten for e in learner.history()] == [True, False, False]


@pytest.mark.parametrize("read", [from_checkpoint, from_pickle])
def test_an_old_learner_forgets_its_last_batch_bit_for_bit(read):
    learner = read()
    learner.forget(1)
    assert_same_bits(learner, "after one")
    assert (learner.batches, learner.examples) == (1, 8)


@pytest.mark.parametrize("read", [from_checkpoint, from_pickle])
def test_an_old_learner_is_written_as_a_new_one(read, tmp_path):
    learner = read()
    learner.save(tmp_path / "again.safetensors")
    for again in (gbp.Learner.load(tmp_path / "again.safetensors"), pickle.loads(pickle.dumps(learner))):
        assert_same_bits(again, "after two")
        assert again.history() == learner.history()
        assert [place.name for place in again.net.places] == ["dense", "dense_1", "softmax"]


@pytest.mark.filterwarnings("ignore:.*ended at the limit of 40 iterations")
def test_an_old_classifier_predicts_and_learns_more():
    classifier = old_classifier()
    assert isinstance(classifier, gbp.GBPClassifier)
    assert_same_bits(classifier.learner_, "classifier")
    np.testing.assert_allclose(classifier.predict_proba(X[16:]), NUMBERS["probabilities"], atol=1e-4)
    classifier.partial_fit(X[16:], Y[16:])
    assert_close(classifier.learner_, "classifier after more")


# All that README, docs and examples of 01d8de2 import, or name as a place in the package.
TAUGHT = {
    "gbplearn": "GBPClassifier GBPRegressor GBPDenoiser scores native",
    "gbplearn.checkpoint": "CheckpointError",
    "gbplearn.cli": "main",
    "gbplearn.compiling": "cache_programs",
    "gbplearn.data.g2o": "read_g2o write_g2o",
    "gbplearn.data.images": "load_images",
    "gbplearn.demo.fill_in": "",
    "gbplearn.denoising.denoiser": "GBPDenoiser",
    "gbplearn.deploy": "export forward_function",
    "gbplearn.drawing": "Drawing",
    "gbplearn.edges": "AxesEdges",
    "gbplearn.estimators": "GBPClassifier GBPRegressor",
    "gbplearn.experiments.fill_in": "causes_at_work digit_painter",
    "gbplearn.factor": "Factor check_jacobian",
    "gbplearn.files": "make_folder",
    "gbplearn.filtering": "Filtering",
    "gbplearn.gaussian": "Gaussian",
    "gbplearn.graph": "FactorGraph",
    "gbplearn.history": "BatchRecord",
    "gbplearn.image_scores": "psnr",
    "gbplearn.inference": "InferenceError Result Status Trace beliefs infer init step",
    "gbplearn.layers.activation": "LeakyRelu SmoothLeakyRelu",
    "gbplearn.layers.avg_pool2d": "AvgPool2D",
    "gbplearn.layers.conv2d": "Conv2D",
    "gbplearn.layers.conv_transpose2d": "ConvTranspose2D",
    "gbplearn.layers.dense": "Dense",
    "gbplearn.layers.gaussian_observation": "GaussianObservation",
    "gbplearn.layers.layer": "Layer Observation Parameter Relation Transform",
    "gbplearn.layers.max_pool2d": "MaxPool2D",
    "gbplearn.layers.pairwise_smoothing": "PairwiseSmoothing",
    "gbplearn.layers.prior": "Prior",
    "gbplearn.layers.softmax": "SoftmaxObservation",
    "gbplearn.layers.stencil": "StencilKind",
    "gbplearn.layers.upsample2d": "Upsample2D",
    "gbplearn.learner": "Learner",
    "gbplearn.measurement": "Entries FactorKind Layout Operator",
    "gbplearn.merging": "merge",
    "gbplearn.models": "dense_classifier digits_classifier",
    "gbplearn.native": "status",
    "gbplearn.network": "Sequential",
    "gbplearn.noise": "LearnNoise",
    "gbplearn.poses": "PoseGraph composed pose_error relative",
    "gbplearn.posterior": "Posterior",
    "gbplearn.problem": "State",
    "gbplearn.report.figures": "BLUE GREEN GREY ORANGE PALE save_figure",
    "gbplearn.robust": "Huber Kernel Tukey",
    "gbplearn.schedule": "AfterVisit Damping OnMovement Order RandomLayers Residual Schedule Sweep damping_for",
    "gbplearn.scores": "",
    "gbplearn.stream": "DriftAlarm",
    "gbplearn.uncertainty": "Uncertainty",
    "gbplearn.unusual": "Oddity Unusual",
    "gbplearn.update_report": "Report",
    "gbplearn.view": "Variable View",
}


@pytest.mark.parametrize("module", TAUGHT)
def test_imports_that_were_taught_work(module):
    importlib.import_module(module)
    for name in TAUGHT[module].split():
        found = {}
        exec(f"from {module} import {name}", found)
        if name in gbp.__all__:  # the very same, not a copy
            assert found[name] is getattr(gbp, name)


@pytest.mark.parametrize("old", sorted(moved.MOVED))
def test_every_old_module_is_found(old):
    if old.startswith("estimator") or "denois" in old or old.startswith(("experiments", "video")):
        pytest.importorskip("sklearn")
    assert importlib.import_module(f"gbplearn.{old}") is not None
