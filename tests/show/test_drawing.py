"""Drawings hold what the graph holds, in boxes that nothing leaves; plots and notebooks show what there is."""

import builtins
import dataclasses
import itertools
import xml.etree.ElementTree as ET

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gbplearn as gbp
from gbplearn.show.drawing import Box, Drawing, Link

SVG = "{http://www.w3.org/2000/svg}"
NASTY = "<b>&\"x'"


def difference(a, b):
    return b - a


def network(**more):
    return gbp.Sequential(
        gbp.Conv2D(3, kernel=2, sigma=0.1, weight_prior=0.3, bias_prior=0.1, prior=3.0),
        gbp.MaxPool2D(2, sigma=0.1, prior=3.0),
        gbp.Dense(2, sigma=0.1, prior=2.0),
        gbp.SoftmaxObservation(sigma=0.1),
        **more,
    )


def small_graph(first="x", second="y", group="step"):
    graph = gbp.FactorGraph()
    x = graph.variable(first, (4,), prior=gbp.Gaussian.from_moments(0.0, 10.0))
    y = graph.variable(second, (3, 2), block=True, prior=gbp.Gaussian.from_moments(np.zeros((3, 2)), 1.0))
    graph.add(gbp.Factor(difference, (x[:-1], x[1:]), y=1.0, sigma=0.1, linear=True, name=group))
    graph.add(gbp.Factor(lambda a, b: a * b[0] + b[1], (x[None, 0:2].reshape(1, 2), y[:]), sigma=0.1, name="shared"))
    return graph


def many_groups(variables, groups, seed=0):
    """A drawing of variables joined at random, some of them parameters."""
    rng = np.random.default_rng(seed)
    names = ["w", "a_name", "an_even_longer_name_of_a_variable_or_two", "日本語の名前", "WWWWMMMM"]
    styles = [("parameter",), ("activation",), ("activation", "observed")]
    boxes = [Box(names[i % 5], ("4 × 3", "no prior"), styles[i % 3]) for i in range(variables)]
    links = []
    for g in range(groups):
        ends = rng.choice(variables, size=min(variables, int(rng.integers(1, 4))), replace=False)
        links += [Link(int(v), len(boxes), 5, False) for v in ends]
        boxes.append(Box(f"group_{g}", ("3 factors", "9 edges"), ("factor",)))
    return Drawing("anything", tuple(boxes), tuple(links))


def rectangles(root):
    """Of the boxes: left, top, right, bottom."""
    out = []
    for group in root.iter(f"{SVG}g"):
        x, y, w, h = (float(group.find(f"{SVG}rect").get(k)) for k in ("x", "y", "width", "height"))
        out.append((x, y, x + w, y + h))
    return out


def text_boxes(group):
    """Text of a group with room for a wide monospaced font, whose letters have 0.61 of its size."""
    for text in group.iter(f"{SVG}text"):
        wide = sum(2 if ord(c) > 0x2E80 else 1 for c in text.text) * 0.61 * 13
        x, y = float(text.get("x")), float(text.get("y"))
        yield x - wide / 2, y - 0.95 * 13, x + wide / 2, y + 0.3 * 13


def inside(inner, outer):
    return all(a >= b for a, b in zip(inner[:2], outer[:2])) and all(a <= b for a, b in zip(inner[2:], outer[2:]))


def within(points, boxes, margin):
    """Which points lie in which boxes, made larger by a margin."""
    points, boxes = np.asarray(points)[:, None], np.asarray(boxes)[None]
    return ((points > boxes[..., :2] - margin) & (points < boxes[..., 2:] + margin)).all(-1)


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def check_picture(drawing):
    """Nothing leaves the picture, texts stay in their boxes, boxes do not touch, and lines do not cross boxes."""
    root = ET.fromstring(drawing.svg)
    page = tuple(map(float, root.get("viewBox").split()))
    boxes = rectangles(root)
    assert len(boxes) == len(drawing.boxes)
    assert all(inside(box, page) for box in boxes)
    assert not any(overlap(a, b) for a, b in itertools.combinations(boxes, 2))
    for group, box in zip(root.iter(f"{SVG}g"), boxes):
        texts = list(text_boxes(group))
        assert len(texts) == 3
        assert all(inside(text, box) for text in texts)
        assert not any(overlap(a, b) for a, b in itertools.combinations(texts, 2))
    lines = list(root.iter(f"{SVG}path"))
    assert len(lines) == len(drawing.links)
    for line, link in zip(lines, drawing.links):
        numbers = [float(n) for part in line.get("d").replace("M", "").split(" ") for n in [part.lstrip("LC")] if n]
        start, out, c1, c2, into, end = zip(numbers[::2], numbers[1::2])
        t = np.linspace(0, 1, 30)[:, None]
        curve = (1 - t) ** 3 * out + 3 * (1 - t) ** 2 * t * c1 + 3 * (1 - t) * t**2 * c2 + t**3 * np.asarray(into)
        assert not within([start, *curve, end], boxes, -1.0).any()
        touched = within([start, end], boxes, 1.0).any(0)
        assert set(np.flatnonzero(touched)) == {link.variable, link.factor}


def test_a_graph_is_drawn_with_its_numbers():
    graph = small_graph()
    drawing = graph.draw()
    boxes = {b.name: b for b in drawing.boxes}
    assert list(boxes) == ["x", "y", "step", "shared"]
    assert boxes["x"].lines == ("4", "prior ± 10")
    assert boxes["y"].lines == ("3 blocks of 2", "prior")
    assert boxes["step"].lines == ("3 factors", "6 edges")  # each of three joins two scalars
    assert boxes["shared"].lines == ("3 factors", "9 edges")  # two shared scalars and one block each
    edges = {(drawing.boxes[k.factor].name, drawing.boxes[k.variable].name): k.edges for k in drawing.links}
    assert edges == {("step", "x"): 6, ("shared", "x"): 6, ("shared", "y"): 3}
    check_picture(drawing)


def test_evidence_and_ties_are_drawn():
    graph = small_graph()
    graph.variable("z", (4,), kind="parameter")
    graph.tie("x", "z")
    graph.observe("y", 0.0)
    graph.variable("w", (2,), prior=gbp.Gaussian.from_moments([0.0, 0.0], [1.0, 2.0]), kind="parameter")
    graph.variable("v", (2,))
    graph.hold("w")
    graph.observe("v", 0.0, mask=[True, False])
    boxes = {b.name: b for b in graph.draw().boxes}
    assert boxes["x = z"].style == ("activation",)
    assert boxes["y"].style == ("activation", "observed")
    assert boxes["w"].style == ("parameter", "held")
    assert boxes["v"].lines[1] == "partly observed"
    assert boxes["shared"].lines == ("3 factors", "6 edges")  # none to what is observed
    assert [link.observed for link in graph.draw().links] == [False, False, True]
    graph.release("w")
    assert {b.name: b for b in graph.draw().boxes}["w"].lines[1] == "prior ± 1 to 2"
    check_picture(graph.draw())


def test_a_network_is_drawn_as_its_graph_is():
    net = network(input_shape=(5, 5, 1))
    drawing = net.draw(batch=3)
    x = np.zeros((3, 5, 5, 1))
    of_graph = net.graph(x, [0, 1, 0]).draw()

    def numbers(one):
        return {(b.name, b.lines[0], b.style) for b in one.boxes}

    def links(one):
        return {(one.boxes[k.variable].name, one.boxes[k.factor].name, k.edges, k.observed) for k in one.links}

    assert numbers(drawing) == numbers(of_graph)
    assert links(drawing) == links(of_graph)
    assert {b.name for b in drawing.boxes if "parameter" in b.style} == set(net.priors())
    check_picture(drawing)


def test_edges_of_a_network_are_those_of_its_table():
    net = network(input_shape=(5, 5, 1))
    told = {row.split()[0]: row.split() for row in str(net).splitlines()}
    drawing = net.draw()
    for number, box in enumerate(drawing.boxes):
        if box.is_factor:
            edges = sum(k.edges for k in drawing.links if k.factor == number and not k.observed)
            assert box.lines[1] == f"{edges:,} edges"
            assert f"{edges:,}" in told[box.name]


def test_a_noisy_input_is_no_observed_variable():
    net = gbp.Sequential(gbp.GaussianObservation(sigma=0.1), gbp.Dense(2), input_shape=(3,))
    boxes = {b.name: b for b in net.draw().boxes if not b.is_factor}
    assert boxes["input"].style == ("activation",)
    assert not any(k.observed for k in net.draw().links)


@pytest.mark.parametrize(("variables", "groups"), [(0, 0), (1, 0), (1, 1), (5, 3), (7, 12), (25, 40), (1, 30)])
def test_nothing_overlaps_or_leaves_the_picture(variables, groups):
    for seed in range(3):
        check_picture(many_groups(variables, groups, seed))


def test_layers_follow_each_other_and_parameters_stand_beside():
    drawing = network(input_shape=(5, 5, 1)).draw()
    places = zip(drawing.boxes, rectangles(ET.fromstring(drawing.svg)))
    tops = {("factor " if box.is_factor else "") + box.name: place[1] for box, place in places}
    chain = ["input", "factor conv", "conv", "factor max_pool", "max_pool", "factor dense", "dense", "factor softmax"]
    assert (np.diff([tops[name] for name in chain]) > 0).all()
    assert tops["conv/weight"] == tops["conv/bias"] == tops["input"]
    assert tops["dense/weight"] == tops["max_pool"]


@settings(max_examples=40)
@given(st.text(min_size=1), st.text(min_size=1), st.text())
def test_any_names_make_a_picture(first, second, group):
    boxes = (Box(first, ("4", "prior"), ("activation",)), Box(second, ("4", "prior"), ("parameter",)))
    drawing = Drawing("any", (*boxes, Box(group, ("1 factor", "2 edges"), ("factor",))), (Link(0, 2, 1, False),))
    root = ET.fromstring(drawing.svg.encode())
    page = tuple(map(float, root.get("viewBox").split()))
    assert all(inside(box, page) for box in rectangles(root))
    assert [e.tag for e in root][:2] == [f"{SVG}title", f"{SVG}desc"]
    assert root.get("role") == "img"


def test_names_come_back_from_the_file(tmp_path):
    graph = small_graph(NASTY, "a" * 100, "日本")
    graph.draw(tmp_path / "graph.svg")
    root = ET.parse(tmp_path / "graph.svg").getroot()
    shown = [text.text for text in root.iter(f"{SVG}text")]
    assert NASTY in shown
    assert "日本" in shown
    assert "a" * 100 not in shown  # cut, but the tooltip has it
    assert any("a" * 100 in title.text for title in root.iter(f"{SVG}title"))
    assert [p.name for p in tmp_path.iterdir()] == ["graph.svg"]


def test_drawing_refuses_what_it_cannot_do(tmp_path):
    drawing = small_graph().draw()
    with pytest.raises(ValueError, match=r"saved as \.svg, got 'graph\.png'"):
        drawing.save(tmp_path / "graph.png")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        drawing.save(tmp_path / "missing" / "graph.svg")
    with pytest.raises(ValueError, match="give input_shape="):
        network().draw()
    with pytest.raises(ValueError, match="batch must be a whole number >= 1"):
        network().draw(batch=0, input_shape=(5, 5, 1))
    assert network().draw(input_shape=(5, 5, 1)).boxes == network(input_shape=(5, 5, 1)).draw().boxes


@pytest.fixture(scope="module")
def result():
    graph = gbp.FactorGraph()
    x = graph.variable("x$", (3,), prior=gbp.Gaussian.from_moments(0.0, 10.0))
    graph.add(gbp.Factor(difference, (x[:-1], x[1:]), y=1.0, sigma=0.1, linear=True, name="_hidden$ <&>$"))
    return gbp.infer(graph)


def test_a_result_is_plotted(result, tmp_path):
    figure = result.plot()
    figure.savefig(tmp_path / "plot.png")
    left, right = figure.axes
    assert left.get_yscale() == "log"
    (line,) = left.lines
    np.testing.assert_allclose(line.get_ydata(), np.where(result.trace.residual > 0, result.trace.residual, np.nan))
    assert list(line.get_xdata()) == list(range(1, result.iterations + 1))
    assert [t.get_text().strip() for t in right.get_legend().get_texts()] == ["_hidden$ <&>$", "priors"]
    energy = result.trace.energy["_hidden$ <&>$"]
    np.testing.assert_allclose(right.lines[0].get_ydata(), np.where(energy > 0, energy, np.nan))
    assert "converged" in figure.get_suptitle()


def test_many_groups_stay_legible(result):
    count, steps = 30, 4
    energy = {f"group {i}": np.full(steps, 1.0 + i) for i in range(count)}
    trace = gbp.Trace(np.ones(steps), energy, np.zeros(steps), {}, dict(energy))
    right = dataclasses.replace(result, trace=trace).plot().axes[1]
    assert len(right.lines) == 12
    assert "group 29" in right.lines[0].get_label()
    # All energy is shown: the smaller ones as their sum.
    assert sum(line.get_ydata()[0] for line in right.lines) == sum(range(1, count + 1))


def test_energies_of_zero_are_plotted(result, tmp_path):
    trace = gbp.Trace(np.zeros(2), {"priors": np.zeros(2)}, np.zeros(2), {}, {"priors": np.zeros(2)})
    figure = dataclasses.replace(result, trace=trace).plot()
    figure.savefig(tmp_path / "plot.png")
    assert len(figure.axes[1].lines) == 2  # a group may be called as the priors are


def test_a_posterior_is_plotted(tmp_path):
    filters = jnp.arange(3 * 3 * 2 * 10, dtype=float).reshape(3, 3, 2, 10)
    std = np.full(50, 0.5)
    std[0] = np.inf
    posterior = gbp.Posterior(
        {
            "conv/weight": gbp.Gaussian.from_moments(filters, 0.1),
            "conv/$b$": gbp.Gaussian.from_moments(jnp.asarray([3.0, 1.0, 2.0]), jnp.asarray([0.3, 0.1, 0.2])),
            "w": gbp.Gaussian(jnp.arange(50.0)[::-1] * 4, jnp.where(jnp.isinf(jnp.asarray(std)), 0.0, 4.0)),
        }
    )
    figure = posterior.plot()
    figure.savefig(tmp_path / "plot.png")
    means, spreads, bias, bias_std, line, histogram = (a for a in figure.axes if a.get_label() != "<colorbar>")
    picture = means.images[0].get_array()
    assert picture.shape == (4 * 4 - 1, 4 * 4 - 1)  # 16 of 20 filters of 3 x 3, four in a row, with gaps
    np.testing.assert_allclose(picture[:3, 4:7], filters[:, :, 0, 1], atol=1e-4)
    np.testing.assert_allclose(spreads.images[0].get_array()[:3, :3], 0.1, atol=1e-6)
    assert "16 of 20 filters" in means.get_title()
    np.testing.assert_allclose([p.get_height() for p in bias_std.patches], [0.1, 0.2, 0.3], rtol=1e-5)  # as the means
    np.testing.assert_allclose(bias.lines[0].get_ydata(), [1.0, 2.0, 3.0], rtol=1e-5)
    assert (np.diff(line.lines[0].get_ydata()) >= 0).all()
    assert sum(p.get_height() for p in histogram.patches) == 49
    assert "1 unknown" in histogram.get_title()
    with pytest.raises(ValueError, match="no parameters"):
        gbp.Posterior({}).plot()


def test_without_matplotlib_a_plot_says_what_to_install(result, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r'plots need matplotlib: pip install "gbplearn\[figures\]"'):
        result.plot()


def test_notebooks_show_all_with_names_escaped(result):
    net = gbp.Sequential(gbp.Dense(2, name=NASTY), gbp.GaussianObservation(sigma=0.1), input_shape=(3,))
    learner = gbp.Learner(net)
    shown = [small_graph(NASTY), net, learner, learner.posterior, result]
    for html in (one._repr_html_() for one in shown):
        ET.fromstring(html)  # well-formed
        assert NASTY not in html
        assert "<script" not in html
        assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    drawn = ["<svg" in one._repr_html_() for one in shown]
    assert drawn == [True, True, True, False, False]
    assert "0 batches, 0 examples" in learner._repr_html_()
    assert "converged" in result._repr_html_()
    assert "x$" in result._repr_html_()
    assert "<svg" not in gbp.Sequential(gbp.Dense(2))._repr_html_()  # its sizes are not known


def test_large_graphs_are_tables_in_notebooks():
    graph = gbp.FactorGraph()
    for i in range(41):
        graph.variable(f"v{i}", (2,))
    assert "<svg" not in graph._repr_html_()
    assert "v40" in graph._repr_html_()
    assert "41 variables, 0 factor groups" in graph._repr_html_()
