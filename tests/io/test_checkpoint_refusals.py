"""Files that are damaged, or lie: each is refused by a `CheckpointError` of one line, whatever it holds."""

import contextlib
import copy
import json
import os
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.numpy

import gbplearn as gbp
from checkpoint_files import VALUES, X, parts, put_together, refused, run, small_file
from gbplearn.io import checkpoint


@pytest.fixture(scope="module")
def good():
    return small_file()


def test_cut_anywhere_it_is_refused(good, tmp_path):
    for length in range(0, len(good), 7):
        refused(good[:length], tmp_path)
    refused(good + b"\0", tmp_path)


def test_any_byte_changed_it_is_refused(good, tmp_path):
    rng = np.random.default_rng(0)
    for place in range(0, len(good), 3):
        changed = bytearray(good)
        changed[place] ^= 1 << rng.integers(8) if place % 2 else 255
        refused(bytes(changed), tmp_path)


@hypothesis.given(st.binary(max_size=200), st.booleans())
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_noise_is_refused(tmp_path, noise, framed):
    refused(len(noise).to_bytes(8, "little") + noise if framed else noise, tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(data, path=()):
    """Where a value stands in plain data: all of them."""
    yield path
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield from places(data[key], (*path, key))


def replaced(data, path, value):
    out = copy.deepcopy(data)
    inner = out
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return out


@hypothesis.given(st.data())
@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
    max_examples=150,
)
def test_any_value_replaced_it_loads_or_is_refused(tmp_path, good, data):
    """What is read may be sound by chance (a seed, a count); nothing but a `CheckpointError` may come out otherwise."""
    facts, header, body = parts(good)
    if data.draw(st.booleans()):
        place = data.draw(st.sampled_from([p for p in places(facts) if p]))
        facts = replaced(facts, place, data.draw(JSON))
    else:
        place = data.draw(st.sampled_from([p for p in places(header) if p]))
        header = replaced(header, place, data.draw(JSON))
    path = tmp_path / "odd.safetensors"
    path.write_bytes(put_together(facts, header, body))
    with contextlib.suppress(gbp.CheckpointError):
        gbp.Learner.load(path)


WEIGHT = "posterior/dense/weight/lam"
LIES = {
    "format": (("format",), 99, "its format is 99"),
    "version": (("version",), 3, "version"),
    "factors": (("factors",), "yes", "factors"),
    "no layers": (("network",), [], "at least one layer"),
    "nodes that are no list": (("nodes",), {"a": ["input"]}, "nodes"),
    "too few nodes": (("nodes",), [["a", ["input"], None]], "layers and 1 nodes"),
    "nodes of numbers": (("nodes",), [[1, ["input"], None]] * 2, "must have names"),
    "nodes of one name": (("nodes",), [["a", ["input"], None]] * 2, "each once"),
    "a node that takes nothing": (("nodes",), [["a", [], None], ["b", ["a"], None]], "take others by name"),
    "a node without a tie": (("nodes",), [["a", ["input"]], ["b", ["a"]]], "a node must be a name"),
    "a node that takes itself": (("nodes",), [["a", ["a"], None], ["b", ["a"], None]], "'a' takes 'a'"),
    "a node tied to none": (("nodes",), [["a", ["input"], None], ["b", ["a"], "c"]], "must name a layer"),
    "no list": (("network",), {"Dense": 1}, "list"),
    "many layers": (("network",), [{"Dense": {}}] * 1001, "more than 1000 layers"),
    "unknown layer": (("network", 0), {"Popen": {"args": "true"}}, "unknown type 'Popen'"),
    "a value for a layer": (("network", 0), {"Tukey": {"threshold": 1.0, "match": "value"}}, "unknown type"),
    "a word for a layer": (("network", 0), "Dense", "layers"),
    "an unknown field": (("network", 0, "Dense", "shell"), "true", "fields"),
    "a layer in a field": (("network", 0, "Dense", "activation"), {"Dense": {}}, "unknown type"),
    "an activation": (("network", 0, "Dense", "activation"), "__import__", "activation must be one of"),
    "a slope": (("network", 0, "Dense", "activation"), {"LeakyRelu": {"slope": "x"}}, "activation"),
    "negative sigma": (("network", 0, "Dense", "sigma"), -0.1, "sigma must be a number > 0"),
    "no sigma": (("network", 0, "Dense", "sigma"), None, "sigma is missing"),
    "a list for sigma": (("network", 0, "Dense", "sigma"), [0.1], "sigma"),
    "huge sigma": (("network", 1, "SoftmaxObservation", "sigma"), 10**400, "too large"),
    "other units": (("network", 0, "Dense", "units"), 3, "must be F32 [2, 3]"),
    "huge units": (("network", 0, "Dense", "units"), 2**40, "must be F32 [2, 1099511627776]"),
    "units too large": (("network", 0, "Dense", "units"), 2**70, "too large"),
    "a slash in a name": (("network", 0, "Dense", "name"), "a/b", "cannot be called"),
    "a number as a name": (("network", 0, "Dense", "name"), 5, "string"),
    "an escape in a name": (("network", 0, "Dense", "name"), "\x1b[2J\n", "tensors"),
    "huge input": (("input_shape",), [2**40], "other examples"),
    "no input": (("input_shape",), [0], "other examples"),
    "many axes": (("input_shape",), [1] * 1000, "other examples"),
    "iterations": (("settings", "iterations"), -1, "iterations cannot be -1"),
    "tolerance": (("settings", "tolerance"), "small", "tolerance"),
    "damping": (("settings", "damping"), 1.0, "damping must lie in [0, 1)"),
    "damping by a list": (("settings", "dropout"), [0.1], "dropout"),
    "damping by name": (
        ("settings", "dropout"),
        {"Damping": {"parameters": 0, "activations": 0, "by_name": [["dense", 2]]}},
        "dropout must lie in [0, 1)",
    ),
    "schedule": (("settings", "schedule"), {"Tukey": {"threshold": 1.0, "match": "value"}}, "schedule cannot be"),
    "messages": (("settings", "messages"), "none", "messages"),
    "guard": (("settings", "guard"), 1, "guard"),
    "alpha": (("settings", "alpha"), 2, "alpha"),
    "input_sigma": (("settings", "input_sigma"), 0, "input_sigma"),
    "dtype": (("settings", "dtype"), "object", "dtype"),
    "dtype of the tensors": (("settings", "dtype"), "float64", "must be F64"),
    "parameters": (("settings", "parameters"), "free", "parameters"),
    "seed": (("settings", "seed"), -1, "seed"),
    "a new setting": (("settings", "hook"), "true", "'hook' does not belong there"),
    "batches": (("batches",), -1, "batches must be a whole number"),
    "true batches": (("batches",), True, "batches must be a whole number"),
    "many batches": (("batches",), 2**60, "batches must be a whole number from 0 to 9,007,199,254,740,992"),
    "caution": (("caution",), -1, "caution must be a whole number from 0 to 24, got -1"),
    "much caution": (("caution",), 10**6, "caution must be a whole number from 0 to 24, got 1000000"),
    "sizes": (("sizes",), [0], "sizes must be a whole number from 1 to 100,000,000, got 0"),
    "huge sizes": (("sizes",), [4, 10**9], "sizes must be a whole number from 1 to 100,000,000, got 1000000000"),
    "sigma beyond its type": (("network", 0, "Dense", "sigma"), 1e308, "layer 0: sigma is too large for float32"),
    "sigma below its type": (("network", 0, "Dense", "sigma"), 1e-30, "layer 0: sigma is too small for float32"),
    "a prior beyond its type": (("network", 0, "Dense", "prior"), 1e20, "layer 0: prior is too large for float32"),
    "a large init": (("network", 0, "Dense", "weight_init"), 1e38, "layer 0: weight_init is too large for float32"),
    "a steep slope": (
        ("network", 0, "Dense", "activation"),
        {"LeakyRelu": {"slope": 1e300}},
        "layer 0: activation: slope is too large for float32",
    ),
    "large tolerance": (("settings", "tolerance"), 1e300, "settings: tolerance is too large for float32"),
    "large process_noise": (("settings", "process_noise"), 1e200, "settings: process_noise is too large for float32"),
    "small forgetting": (("settings", "forgetting"), 1e-45, "settings: forgetting is too small for float32"),
    "large input_sigma": (("settings", "input_sigma"), 1e308, "settings: input_sigma is too large for float32"),
    "small input_sigma": (("settings", "input_sigma"), 1e-45, "settings: input_sigma is too small for float32"),
    "noise": (("noise", "dense"), {"LearnNoise": {"start": 0.1, "weight": 1.0}}, "noise"),
    "note": (("note",), 5, "note must be an object"),
    "note with a type": (("note", "x"), {"LeakyRelu": {"slope": 1.0}}, "unknown type"),
    "more": (("more",), 1, "'more' does not belong there"),
}


READER = """
import json, sys
from pathlib import Path
import gbplearn as gbp

out = {}
for path in Path(sys.argv[1]).iterdir():
    try:
        gbp.Learner.load(path)
    except BaseException as error:
        out[path.name] = type(error).__name__, str(error)
print(json.dumps(out))
"""


def test_facts_that_are_not_sound(good, tmp_path):
    facts, header, body = parts(good)
    for lie, (place, value, _) in LIES.items():
        (tmp_path / lie).write_bytes(put_together(replaced(facts, place, value), header, body))
    found = json.loads(run(READER, tmp_path))
    for lie, (_, _, saying) in LIES.items():
        assert found[lie][0] == "CheckpointError", found[lie]
        assert saying in found[lie][1]
        assert "Error" not in found[lie][1]  # an exception that was not foreseen
        assert found[lie][1].isprintable()


def test_hostile_json(good, tmp_path):
    facts, header, body = parts(good)
    refused(put_together("[" * 10**6, header, body), tmp_path, "nested too deeply")
    refused(put_together('{"a":' * 10**5, header, body), tmp_path, "nested too deeply")
    refused(put_together("[]", header, body), tmp_path, "not a JSON object")
    refused(put_together("", header, body), tmp_path, "not JSON")
    refused(put_together('{"format":1,"format":1}', header, body), tmp_path, "twice")
    refused(put_together({**facts, "batches": float("nan")}, header, body), tmp_path, "NaN is no number")
    text = json.dumps({**facts, "settings": {**facts["settings"], "tolerance": 0.001}})
    refused(put_together(text.replace("0.001", "1e999"), header, body), tmp_path, "too large")
    refused(put_together(text.replace("0.001", "9" * 10**4), header, body), tmp_path, "not JSON")
    newer = {"tied", "nodes", "features", "features_fitted", "priors_fitted"}  # which older files do not have
    for missing in facts.keys() - newer:
        fewer = {name: value for name, value in facts.items() if name != missing}
        refused(put_together(fewer, header, body), tmp_path, missing)
    wrong = put_together({**facts, "priors_fitted": True}, header, body)
    refused(wrong, tmp_path, "priors_fitted must be true or false, and false where no prior follows from the inputs")
    for head in (b"[" * 10**6, b"{}", b"[]", b'{"__metadata__":5}', b"\xff\xfe" * 8, b"{" + b" " * 50):
        refused(len(head).to_bytes(8, "little") + head + body, tmp_path)
    for length in (2**64 - 1, 2**63, 10**9, len(good), 0, 1):
        refused(length.to_bytes(8, "little") + good[8:], tmp_path, "bytes of header")
    refused(safetensors.numpy.save({"a": np.zeros(3)}), tmp_path, "no checkpoint of gbplearn")


def test_tensors_that_do_not_fit(good, tmp_path):
    facts, header, body = parts(good)
    for field, value, saying in (
        ("shape", [2**31, 2**31], "must be F32 [2, 2]"),
        ("shape", [4], "must be F32 [2, 2]"),
        ("shape", [2, -2], "whole"),
        ("shape", "2x2", "list"),
        ("dtype", "I32", "must be F32"),
        ("dtype", ["F32"], "must be F32"),
        ("data_offsets", [0, 2**60], "cannot be"),
        ("data_offsets", [0], "cannot be"),
        ("data_offsets", [-16, 0], "whole"),
        ("data_offsets", [0, 16], "side by side"),
        ("data_offsets", [len(body), len(body) + 16], "side by side"),
        ("strides", [1], "does not belong there"),
    ):
        lie = {**header, WEIGHT: {**header[WEIGHT], field: value}}
        refused(put_together(facts, lie, body), tmp_path, saying)
    fewer = {name: entry for name, entry in header.items() if name != WEIGHT}
    refused(put_together(facts, fewer, body), tmp_path, "is missing")
    more = {**header, "more": {"dtype": "F32", "shape": [1], "data_offsets": [len(body), len(body) + 4]}}
    refused(put_together(facts, more, body + b"\0" * 4), tmp_path, "does not belong there")
    refused(put_together(facts, header, body + b"\0"), tmp_path, "side by side")
    refused(put_together(facts, header, body[:-1]), tmp_path, "side by side")
    wide = {n: {**e, "shape": [3]} if n.startswith("input_prior") else e for n, e in header.items()}
    refused(put_together(facts, wide, body), tmp_path, "input_prior")


def test_numbers_that_are_no_beliefs(good, tmp_path):
    facts, header, body = parts(good)
    for name, entry in header.items():
        for number in (np.nan, np.inf, -np.inf, *((-1.0,) if name.endswith("/lam") else ())):
            at = entry["data_offsets"][0]
            lie = body[:at] + np.float32(number).tobytes() + body[at + 4 :]
            refused(put_together(facts, header, lie), tmp_path, f"{name} is no proper belief")
    at = header[WEIGHT]["data_offsets"][0]
    refused(put_together(facts, header, body[:at] + b"\0" * 4 + body[at + 4 :]), tmp_path, "no proper belief")


def test_numbers_that_their_type_cannot_compute_with(good, tmp_path):
    """A precision whose variance overflows (or is lost), a mean whose square does, a mean where nothing is known."""
    facts, header, body = parts(good)

    def lie(numbers):
        out = bytearray(body)
        for name, number in numbers.items():
            at = header[name]["data_offsets"][0]
            out[at : at + 4] = np.float32(number).tobytes()
        return put_together(facts, header, bytes(out))

    for name in ("posterior/dense/weight", "prior/dense/weight", "input_prior"):
        eta, lam = (f"{name}/{part}" for part in ("eta", "lam"))
        for numbers in ({lam: 1e-45}, {lam: 3e38}, {eta: 1e25, lam: 1e-5}, {eta: 1e38, lam: 1e-37}):
            assert name in refused(lie(numbers), tmp_path, "is no proper belief")
    refused(lie({"input_prior/lam": 0.0, "input_prior/eta": 1.0}), tmp_path, "input_prior is no proper belief")
    (tmp_path / "flat").write_bytes(lie({"input_prior/lam": 0.0, "input_prior/eta": 0.0}))
    assert float(gbp.Learner.load(tmp_path / "flat").input_prior.lam.ravel()[0]) == 0
    many = {**facts, "batches": 2**53, "settings": {**facts["settings"], "seed": 2**63 - 1}}
    refused(put_together(many, header, body), tmp_path, "seed")


@pytest.fixture(scope="module")
def noisy():
    """Of a learner that learns its noise and can forget its last batch."""
    net = gbp.Sequential(gbp.Dense(1, sigma=0.1), gbp.GaussianObservation(sigma="learn"))
    learner = gbp.Learner(net, (2,), iterations=8, record=True)
    assert learner.update(X, VALUES).accepted
    return checkpoint.encode(learner, {})


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("history", "before", "caution"), -1, "history: caution must be a whole number from 0 to 24, got -1"),
        (("history", "count"), 2**60, "history: count must be a whole number"),
        (("history", "count"), 0, "history: count must be a whole number from 1"),
        (("history", "noise", "0", "gaussian", 0), 1e300, "history: noise of batch 0 is too large for float32"),
        (("noise", "gaussian", "LearnNoise", "start"), 1e-30, "noise: gaussian: start is too small for float32"),
        (("noise", "gaussian", "LearnNoise", "weight"), 1e30, "noise: gaussian: weight is too large for float32"),
        (
            ("history", "before", "noise", "gaussian", "LearnNoise", "start"),
            1e300,
            "history: noise before: gaussian: start is too large for float32",
        ),
    ],
    ids=lambda v: "/".join(map(str, v)) if isinstance(v, tuple) else "",
)
def test_numbers_of_noise_and_history(place, value, named, noisy, tmp_path):
    facts, header, body = parts(noisy)
    (tmp_path / "good").write_bytes(put_together(facts, header, body))
    gbp.Learner.load(tmp_path / "good")
    refused(put_together(replaced(facts, place, value), header, body), tmp_path, named)


def test_images_of_any_size_take_no_memory(tmp_path):
    """Few parameters can belong to huge images: to load or describe them allocates none."""
    layers = gbp.Conv2D(1, kernel=1), gbp.MaxPool2D(2), gbp.GaussianObservation()
    gbp.Learner(gbp.Sequential(*layers), (2, 2, 1)).save(tmp_path / "run.safetensors")
    facts, header, body = parts((tmp_path / "run.safetensors").read_bytes())
    (tmp_path / "huge").write_bytes(put_together({**facts, "input_shape": [10**9, 10**9, 1]}, header, body))
    assert gbp.Learner.load(tmp_path / "huge").input_shape == (10**9, 10**9, 1)
    assert "1000000000x1000000000x1" in checkpoint.describe(tmp_path / "huge")


def test_paths_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, saying in ((tmp_path, "not a file"), (tmp_path / "none", "no such file"), (tmp_path / "pipe", "not a")):
        for read in (gbp.Learner.load, lambda p: checkpoint.describe(Path(p))):
            with pytest.raises(gbp.CheckpointError, match=saying):
                read(path)
