"""Poses, pose graphs, and the files that hold them."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares
from scipy.spatial.transform import RigidTransform, Rotation

import gbplearn as gbp
from gbplearn.graph.poses import FREEDOM, composed, pose_error, relative, stepped

FIELDS = [f.name for f in dataclasses.fields(gbp.PoseGraph)]
PLANE = "VERTEX_SE2 5 0 0 0\nVERTEX_SE2 3 1 0 0.5\n"
INDEFINITE = "line 3: the information matrix is not positive definite"
EDGE = "EDGE_SE2 5 3 1 0 0.5 1 0 0 1 0 1\n"


def matrix(pose):
    """A pose as a homogeneous matrix, by SciPy."""
    if len(pose) == 3:
        return RigidTransform.from_components([*pose[:2], 0], Rotation.from_euler("z", pose[2])).as_matrix()
    return RigidTransform.from_components(pose[:3], Rotation.from_quat(pose[3:])).as_matrix()


def some_poses(space, count, seed=0):
    rng = np.random.default_rng(seed)
    if not space:
        return rng.standard_normal((count, 3)) * [3, 3, 2]
    return np.concatenate([rng.standard_normal((count, 3)), Rotation.random(count, rng=rng).as_quat()], 1)


def noisy(space, count, closures, seed=1):
    """A walk, started with its odometry added up; noise with full covariances."""
    rng, k = np.random.default_rng(seed), FREEDOM[7 if space else 3]
    size = [1, 0, 0, 0, 0, 0, 1.0] if space else [1, 0, 0.0]
    path = [np.array(size)]
    for _ in range(count - 1):
        turn = Rotation.from_rotvec(0.4 * rng.standard_normal(3)).as_quat() if space else [rng.normal(0, 0.8)]
        path.append(composed(path[-1], np.array([1.0, 0, 0, *turn] if space else [1.0, 0, *turn])))
    path = np.stack(path)
    follows = np.stack([np.arange(count - 1), np.arange(1, count)], 1)
    first = rng.integers(0, count - 3, closures)
    edges = np.concatenate([follows, np.stack([first, rng.integers(first + 2, count)], 1)])
    root = 20 * (np.eye(k) + 0.3 * rng.standard_normal((len(edges), k, k)))
    information = root @ root.swapaxes(1, 2)
    information = (information + information.swapaxes(1, 2)) / 2
    off = np.linalg.solve(root.swapaxes(1, 2), rng.standard_normal((len(edges), k, 1)))[..., 0]
    measured = relative(path[edges[:, 0]], path[edges[:, 1]])
    measured = stepped(measured, off * ([1, 1, 1, 2, 2, 2] if space else 1)) if space else composed(measured, off)
    start = [path[0]]
    for step in measured[: count - 1]:
        start.append(composed(start[-1], step))
    return gbp.PoseGraph(np.stack(start), edges, measured, information, np.zeros(count, bool), np.arange(count))


@pytest.mark.parametrize("space", [False, True])
def test_poses_are_rigid_motions(space):
    for a, b in zip(some_poses(space, 5), some_poses(space, 5, seed=1)):
        seen = relative(a, b)
        assert np.allclose(matrix(seen), np.linalg.inv(matrix(a)) @ matrix(b), atol=1e-12)
        assert np.allclose(matrix(composed(a, b)), matrix(a) @ matrix(b), atol=1e-12)
        assert np.allclose(matrix(composed(a, seen)), matrix(b), atol=1e-12)
        assert np.allclose(pose_error(seen, a, b), 0, atol=1e-12)
        assert np.allclose(relative(*(jax.numpy.asarray(p) for p in (a, b))), seen, atol=1e-5)


def test_errors_are_those_of_g2o():
    """`z^-1 a^-1 b`: rotated by the measurement, angle wrapped; in space the vector of a quaternion with `w >= 0`."""
    off = pose_error(np.array([1.0, 0, np.pi / 2]), np.zeros(3), np.array([1.0, 0.2, np.pi / 2 + 0.1 + 2 * np.pi]))
    assert np.allclose(off, [0.2, 0, 0.1])
    a, b, z = (p[0] for p in (some_poses(True, 1, s) for s in range(3)))
    full = np.linalg.inv(matrix(z)) @ np.linalg.inv(matrix(a)) @ matrix(b)
    quaternion = Rotation.from_matrix(full[:3, :3]).as_quat(canonical=True)
    for sign in (1, -1):
        other = b * np.array([1, 1, 1, *4 * [sign]])
        assert np.allclose(pose_error(z, a, other), [*full[:3, 3], *quaternion[:3]])


def test_a_step_in_space_is_a_rotation_vector_to_first_order():
    pose, step = some_poses(True, 1)[0], 1e-4 * np.arange(1.0, 7)
    moved = matrix(pose) @ matrix([*step[:3], *Rotation.from_rotvec(step[3:]).as_quat()])
    assert np.allclose(matrix(stepped(pose, step)), moved, atol=1e-9)


def test_energy_is_half_of_chi2_at_any_steps():
    graph, steps = noisy(True, 6, 2), 0.3 * np.random.default_rng(0).standard_normal((6, 6))
    steps[0] = 0  # observed
    moved = dataclasses.replace(graph, poses=stepped(graph.poses, steps))
    assert 2 * graph.graph().energy({"pose": steps})["edges"] == pytest.approx(moved.chi2(), rel=1e-4)


@pytest.mark.slow
def test_inference_in_space_reaches_the_cost_of_least_squares():
    """In the plane: see `test_examples.py`."""
    graph = noisy(True, 8, 4)
    root = np.linalg.cholesky(graph.information)

    def residuals(x):
        poses = np.concatenate([graph.poses[:1], stepped(graph.poses[1:], x.reshape(-1, 6))])
        return np.einsum("mji,mj->mi", root, dataclasses.replace(graph, poses=poses).errors()).ravel()

    best = 2 * least_squares(residuals, np.zeros(6 * 7)).cost
    assert best < 0.5 * graph.chi2()
    result = gbp.infer(graph.graph(), iterations=1000, damping=0.4)
    found = graph.at(result)
    assert found.chi2() == pytest.approx(best, rel=1e-3)
    assert 2 * result.trace.total_energy[-1] == pytest.approx(found.chi2(), rel=1e-3)
    assert np.allclose(found.poses[0], graph.poses[0], atol=1e-6)


def test_robust_closures_are_a_group_of_their_own():
    graph = dataclasses.replace(noisy(False, 8, 3), fixed=np.arange(8) == 2)
    groups = graph.graph(robust=gbp.Tukey(3.0)).factors
    assert groups["edges"].robust is None
    assert isinstance(groups["closures"].robust, gbp.Tukey)
    assert (groups["edges"].factors, groups["closures"].factors) == (7, 3)
    assert list(graph.graph().factors) == ["edges"]
    alone = dataclasses.replace(graph, **{n: getattr(graph, n)[:0] for n in ("edges", "measurements", "information")})
    with pytest.raises(ValueError, match="no edges"):
        alone.graph()


@pytest.mark.parametrize("space", [False, True])
def test_what_is_written_is_read_to_the_last_digit(space, tmp_path):
    graph = noisy(space, 6, 2)
    graph = dataclasses.replace(graph, ids=np.array([7, 3, 2**62, 0, 1, 12]), fixed=np.arange(6) == 3)
    gbp.write_g2o(tmp_path / "a.g2o", graph)
    again = gbp.read_g2o(str(tmp_path / "a.g2o"))
    for name in FIELDS:
        assert np.array_equal(getattr(graph, name), getattr(again, name)), name
    assert [p.name for p in tmp_path.iterdir()] == ["a.g2o"]


def test_a_file_as_others_write_it(tmp_path):
    path = tmp_path / "a.g2o"
    path.write_bytes(b"# a comment\r\nPARAMS_SE2OFFSET 0 0 0 0\r\n\r\n" + (PLANE + EDGE).encode() + b"FIX 3\n")
    graph = gbp.read_g2o(path)
    assert graph.ids.tolist() == [5, 3]
    assert graph.fixed.tolist() == [False, True]
    assert graph.edges.tolist() == [[0, 1]]
    assert graph.chi2() == 0
    path.write_text(PLANE)
    assert gbp.read_g2o(path).information.shape == (0, 3, 3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no poses"),
        ("VERTEX_SE2 0 0 0\n", "line 1: VERTEX_SE2 has 4 numbers, not 3"),
        (PLANE + "VERTEX_SE2 5 0 0 0\n", "line 3: pose 5 occurs twice"),
        (PLANE + "VERTEX_XY 1 0 0\n", "line 3: 'VERTEX_XY' is none of"),
        (PLANE + "VERTEX_SE3:QUAT 1 0 0 0 0 0 0 1\n", "line 3: VERTEX_SE3:QUAT in a file of poses in the plane"),
        ("VERTEX_SE3:QUAT 1 0 0 0 0 0 0 0\n", "line 1: the quaternion does not have length 1"),
        ("VERTEX_SE2 0 x 0 0\n", "line 1: 'x' is not a number"),
        ("VERTEX_SE2 0 inf 0 0\n", "line 1: 'inf' is not a number"),
        ("VERTEX_SE2 -1 0 0 0\n", "line 1: '-1' is not the number of a pose"),
        (PLANE + EDGE.replace("5 3", "5 4"), "line 3: there is no pose 4"),
        (PLANE + EDGE.replace("5 3", "5 5"), "line 3: an edge from pose 5 to itself"),
        (
            PLANE + EDGE.replace("1 0 0 1 0 1", "1 0 0 1 1.1 1"),
            INDEFINITE,
        ),
        (PLANE + EDGE.replace("1 0 0 1 0 1", "1 0 0 1 0 0"), INDEFINITE),
        (
            PLANE + EDGE.replace("1 0 0 1 0 1", "1 0 0 1 0 -1"),
            INDEFINITE,
        ),
        ("EDGE2 0 1 1 0 0.5 1 0 0 1 0\n", "line 1: EDGE2 has 11 numbers, not 10"),
        ("VERTEX3 0 1 0 0.5 1 0 0 1\n", "line 1: VERTEX3 has 7 numbers, not 8"),
        (PLANE + "EDGE3 5 3" + 27 * " 1" + "\n", "line 3: EDGE3 in a file of poses in the plane"),
        (EDGE + EDGE.replace("5 3", "1 2"), "holds edges alone, and none lead to pose 3"),
        (EDGE + "FIX 5 3\n", "line 2: pose 3 is fixed as others are, but no line says where it is"),
        (EDGE + "FIX 4\n", "line 2: there is no pose 4"),
        ("FIX 4\n", "holds no poses"),
        (PLANE + "FIX 4\n", "line 3: there is no pose 4"),
        (PLANE + "FIX a\n", "line 3: 'a' is not the number of a pose"),
    ],
)
def test_bad_files_are_refused_by_line(text, told, tmp_path):
    path = tmp_path / "bad.g2o"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.g2o") as error:
        gbp.read_g2o(path)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def in_g2o(graph, vertices=True):
    """As text; the numbers of poses are their rows."""
    size = graph.poses.shape[1]
    tag = "SE3:QUAT" if size == 7 else "SE2"
    lines = [f"VERTEX_{tag} {i} {' '.join(map(repr, p))}" for i, p in enumerate(graph.poses.tolist())] * vertices
    upper = graph.information[:, *np.triu_indices(FREEDOM[size])]
    for (i, j), z, triangle in zip(graph.edges, graph.measurements.tolist(), upper.tolist()):
        lines.append(f"EDGE_{tag} {i} {j} {' '.join(map(repr, z + triangle))}")
    return "\n".join(lines) + "\n"


def in_toro(graph):
    """The same graph as TORO writes it: other angles, another order; written down apart from the reader."""
    lines = []
    for i, p in enumerate(graph.poses):
        if graph.in_space:
            angles = Rotation.from_quat(p[3:]).as_euler("xyz")
            lines.append(f"VERTEX3 {i} {' '.join(map(repr, [*p[:3].tolist(), *angles.tolist()]))}")
        else:
            lines.append(f"VERTEX2 {i} {' '.join(map(repr, p.tolist()))}")
    for (i, j), z, omega in zip(graph.edges, graph.measurements, graph.information):
        if graph.in_space:
            angles = Rotation.from_quat(z[3:]).as_euler("xyz")
            half = np.diag([1, 1, 1, 0.5, 0.5, 0.5])  # the vector of a quaternion is half of a small angle
            numbers = [*z[:3], *angles, *(half @ omega @ half)[np.triu_indices(6)]]
            lines.append(f"EDGE3 {i} {j} {' '.join(repr(float(n)) for n in numbers)}")
        else:
            (ff, fs, fr), (_, ss, sr), (_, _, rr) = omega
            numbers = [*z, ff, fs, ss, rr, fr, sr]
            lines.append(f"EDGE2 {i} {j} {' '.join(repr(float(n)) for n in numbers)}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("space", [False, True])
def test_a_file_in_both_formats_is_the_same_graph(space, tmp_path):
    graph = noisy(space, 8, 4)
    for name, text in (("a.g2o", in_g2o(graph)), ("a.graph", in_toro(graph))):
        (tmp_path / name).write_text(text)
    a, b = (gbp.read_g2o(tmp_path / name) for name in ("a.g2o", "a.graph"))
    for name in ("edges", "fixed", "ids"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    np.testing.assert_allclose(b.information, a.information, rtol=1e-12)
    for mine, yours in ((a.poses, b.poses), (a.measurements, b.measurements)):
        np.testing.assert_allclose([matrix(p) for p in yours], [matrix(p) for p in mine], atol=1e-12)
    assert b.chi2() == pytest.approx(a.chi2(), rel=1e-9)


def test_information_of_toro_weighs_angles(tmp_path):
    """An edge in space that is off by small angles costs what they cost; in the plane by its own numbers."""
    off, rng = 1e-4 * np.arange(1.0, 7), np.random.default_rng(0)
    root = rng.standard_normal((6, 6))
    omega = root @ root.T
    numbers = " ".join(map(repr, omega[np.triu_indices(6)].tolist()))
    (tmp_path / "a.graph").write_text(
        f"VERTEX3 0 0 0 0 0 0 0\nVERTEX3 1 {' '.join(map(repr, off.tolist()))}\nEDGE3 0 1 0 0 0 0 0 0 {numbers}\n"
    )
    assert gbp.read_g2o(tmp_path / "a.graph").chi2() == pytest.approx(off @ omega @ off, rel=1e-3)
    (tmp_path / "b.graph").write_text("VERTEX2 0 0 0 0\nVERTEX2 1 1 2 3\nEDGE2 0 1 0 0 0 100 1 200 300 2 3\n")
    # ff + 4 ss + 9 rr + 2 (2 fs + 3 fr + 6 sr)
    assert gbp.read_g2o(tmp_path / "b.graph").chi2() == pytest.approx(100 + 800 + 2700 + 2 * (2 + 6 + 18))


@pytest.mark.parametrize("space", [False, True])
def test_edges_alone_start_from_odometry(space, tmp_path):
    graph = noisy(space, 12, 5)  # whose poses are its odometry added up
    (tmp_path / "a.g2o").write_text(in_g2o(graph, vertices=False))
    found = gbp.read_g2o(tmp_path / "a.g2o")
    np.testing.assert_array_equal(found.ids, np.arange(12))
    np.testing.assert_allclose(matrix(found.poses[0]), np.eye(4), atol=1e-12)
    for p, q in zip(found.poses, graph.poses):
        np.testing.assert_allclose(matrix(p), matrix(relative(graph.poses[0], q)), atol=1e-9)
    assert found.chi2() == pytest.approx(graph.chi2(), rel=1e-6)
    assert set(found.graph().variables) == {"pose"}


def test_edges_alone_start_along_a_tree(tmp_path):
    """With gaps in the odometry, edges that point back, numbers in any order, and a pose that is fixed."""
    graph, rng = noisy(False, 10, 12), np.random.default_rng(0)
    keep = [k for k, (i, j) in enumerate(graph.edges) if (i, j) not in ((3, 4), (7, 8))]
    lines = []
    for k in rng.permutation(keep):
        (i, j), z = graph.edges[k], graph.measurements[k]
        if k % 2:
            i, j, z = j, i, relative(z, np.zeros(3))
        lines.append(f"EDGE_SE2 {10 * i} {10 * j} {' '.join(map(repr, z.tolist()))} 1 0 0 1 0 1")
    (tmp_path / "a.g2o").write_text("\n".join(lines) + "\nFIX 40\n")
    found = gbp.read_g2o(tmp_path / "a.g2o")
    np.testing.assert_array_equal(found.ids, 10 * np.arange(10))
    np.testing.assert_array_equal(found.poses[4], np.zeros(3))
    np.testing.assert_array_equal(found.fixed, np.arange(10) == 4)
    exact = np.abs(found.errors()).max(1) < 1e-9
    follows = np.abs(np.diff(found.edges, axis=1)[:, 0]) == 1
    assert exact[follows].all()
    assert exact.sum() == 9  # a tree
    (tmp_path / "b.g2o").write_text("\n".join(lines) + "\nFIX 40\nEDGE_SE2 800 900 0 0 0 1 0 0 1 0 1\n")
    with pytest.raises(ValueError, match="none lead to pose 800"):
        gbp.read_g2o(tmp_path / "b.g2o")


def rounded(space, digits, seed=0):
    """An information matrix with an eigenvalue of 0, rounded: it may be negative then."""
    rng, k = np.random.default_rng(seed), 6 if space else 3
    root = rng.standard_normal((k, k - 1)) * 10.0 ** rng.uniform(-2, 3, k)[:, None]
    return np.array([[float(f"{v:.{digits}g}") for v in row] for row in root @ root.T])


@pytest.mark.parametrize("space", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_semi_definite_by_rounding_is_read(space, seed, tmp_path):
    graph = noisy(space, 4, 1)
    given = np.stack([rounded(space, 6, 10 * seed + i) for i in range(len(graph.edges))])
    scale = np.sqrt(np.diagonal(given, axis1=1, axis2=2))
    assert np.linalg.eigvalsh(given / scale[:, None] / scale[..., None]).min() < 0
    graph = dataclasses.replace(graph, information=given)
    (tmp_path / "a.g2o").write_text(in_g2o(graph))
    found = gbp.read_g2o(tmp_path / "a.g2o")
    off = (found.information - given) / scale[:, None] / scale[..., None]
    assert np.abs(off).max() < 1e-5  # of the digits that the file has
    np.testing.assert_array_equal(found.information, np.swapaxes(found.information, 1, 2))
    assert np.linalg.eigvalsh(found.information).min() > 0
    assert found.graph().factors["edges"].factors == len(graph.edges)
    gbp.write_g2o(tmp_path / "b.g2o", found)
    np.testing.assert_array_equal(gbp.read_g2o(tmp_path / "b.g2o").information, found.information)


def test_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="cannot read"):
        gbp.read_g2o(tmp_path / "missing.g2o")
    with pytest.raises(ValueError, match="cannot read"):
        gbp.read_g2o(tmp_path)


TAGS = ("VERTEX_SE2", "EDGE_SE2", "VERTEX_SE3:QUAT", "EDGE_SE3:QUAT", "VERTEX2", "EDGE2", "VERTEX3", "EDGE3", "FIX")
WORDS = st.sampled_from([*TAGS, "0", "1", "2", "-1", "1e308", "1e-320", "nan"])
LINES = st.lists(st.lists(WORDS, max_size=13).map(" ".join), max_size=6).map(lambda x: "\n".join(x).encode())
NUMBERS = st.lists(st.floats(allow_nan=False) | st.integers(), min_size=9, max_size=9)
EDGES = st.tuples(st.sampled_from([PLANE, ""]), st.sampled_from(["EDGE_SE2", "EDGE2"]), NUMBERS).map(
    lambda x: f"{x[0]}{x[1]} 5 3 {' '.join(map(str, x[2]))}".encode()
)


@settings(max_examples=100)
@given(st.binary(max_size=60) | LINES | EDGES)
@example((PLANE + "EDGE_SE2 5 3 0 0 0 1e308 0 0 1e-320 0 1\n").encode())
@example(b"VERTEX_SE2 99999999999999999999 0 0 0")
@example(b"EDGE_SE2 0 1 1e308 1e308 2 1 0 0 1 0 1\nEDGE_SE2 1 2 1e308 1e308 1 1 0 0 1 0 1\n")
@example(b"EDGE3 0 1 0 0 0 1 2 3" + 21 * b" 1e308" + b"\n")
def test_garbage_is_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "garbage.g2o"
    path.write_bytes(data)
    told = None
    try:
        assert np.isfinite(gbp.read_g2o(path).poses).all()
    except ValueError as error:
        told = str(error)
    assert told is None or ("garbage.g2o" in told and "\n" not in told)
