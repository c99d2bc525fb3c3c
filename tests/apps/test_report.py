"""Parts of a report: the page, pictures in both lights, what layers cost, sections on a classifier."""

import base64
import re

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import gbplearn as gbp
from browser import contrast
from gbplearn.apps.report.classifier import Learnt, draw_uncertain, sections
from gbplearn.apps.report.layer_cost import cost_rows, group_costs
from gbplearn.show.figures import picture
from gbplearn.show.page import Section, in_both_lights, write_page


def plot():
    figure = Figure(figsize=(3, 2))
    ax = figure.subplots()
    ax.plot([0, 1], color="#0072b2", label="#000000 is a text")
    ax.imshow([[0.0, 1.0]])
    ax.legend()
    return picture(figure, "plot", "words", None)[0]


def test_pictures_follow_the_reader_s_light():
    before, after = plot().decode(), in_both_lights(plot()).decode()
    styles = re.findall(r'style="([^"]*)"', after)
    assert any("var(--c0072b2)" in s for s in styles)
    assert not any(c in s for s in styles for c in ("#000000", "#ffffff", "#0072b2"))
    assert "#000000 is a text" in after  # only colours of styles change
    pixels = re.findall(r"data:image/png;base64,([^\"]*)", before)
    assert pixels
    assert pixels == re.findall(r"data:image/png;base64,([^\"]*)", after)
    light, dark = re.search(
        r"<style>:root\{(.*?)\}@media \(prefers-color-scheme: dark\)\{:root\{(.*?)\}", after
    ).groups()
    colours = [dict(re.findall(r"--c(\w+):#(\w+);", part)) for part in (light, dark)]
    assert all(name == value for name, value in colours[0].items())
    css = [{n: f"rgb({int(v[:2], 16)}, {int(v[2:4], 16)}, {int(v[4:], 16)})" for n, v in c.items()} for c in colours]
    for scheme in css:
        assert contrast(scheme["000000"], scheme["ffffff"]) > 12
        for line in ("0072b2", "d55e00", "009e73", "555555"):
            assert contrast(scheme[line], scheme["ffffff"]) > 3  # what WCAG asks of graphics


def test_other_drawings_are_left_alone():
    graph = gbp.FactorGraph()
    graph.variable("x", (2,))
    svg = graph.draw().svg.encode()
    assert in_both_lights(svg) == svg


def test_a_page_has_its_contents_and_pictures_with_words(tmp_path):
    wide = plot().replace(b'width="216pt"', b'width="600pt"')
    path = write_page(
        tmp_path / "page.html",
        "A & B",
        "lead $1",
        [
            Section("Same", "one", pictures=[(plot(), 'say "x"')]),
            Section("Same", "two", pictures=[(wide, "y")]),
            Section("Photo", "", pictures=[(wide, "z")], shrink=True),
        ],
    )
    text = path.read_text()
    marks = re.findall(r'<h2 id="([^"]+)"', text)
    assert len(set(marks)) == 3
    assert re.findall(r'<a href="#([^"]+)"', text) == marks
    assert text.count('tabindex="0"') == 1  # what is scrolled, and nothing else
    images = re.findall(r'<img class="(\w+)" alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)"', text)
    assert [(c, a) for c, a, _ in images] == [("small", "say &quot;x&quot;"), ("wide", "y"), ("whole", "z")]
    assert base64.b64decode(images[0][2]) == in_both_lights(plot())
    assert "lead $1" in text  # nothing of the user's is taken for a place of the template
    assert not re.search(r'(src|href)="(?!data:|#)', text)


def test_page_escapes_what_it_is_given(tmp_path):
    path = write_page(
        tmp_path / "a.html",
        "<b>",
        "a & b",
        [Section("<i>", "x < y", [("h",), ("<td>",)], details={"<k>": {"k": {"l": "<"}}})],
    )
    text = path.read_text()
    assert "<b>" not in text
    assert "&lt;td&gt;" in text
    assert "k.l" in text


def test_costs_count_what_is_there():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (5,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    graph.add(gbp.Factor(lambda a: a, (x[:],), y=np.ones(5), sigma=1.0, name="first"))
    graph.add(gbp.Factor(lambda a, b: b - a, (x[:-1], x[1:]), sigma=1.0, name="middle"))
    graph.add(gbp.Factor(jnp.sin, (x[4:],), y=[0.1], sigma=1.0, name="last"))
    costs = group_costs(graph, repeats=3)
    assert [(c.name, c.factors, c.edges, c.visits) for c in costs] == [
        ("first", 5, 5, 1),
        ("middle", 4, 8, 2),  # a sweep goes forward and back
        ("last", 1, 1, 1),
    ]
    # Two numbers for each message at least, in float32.
    assert all(c.messages >= 2 * 4 * c.edges for c in costs)
    rows = cost_rows(costs)
    assert len({len(r) for r in rows}) == 1
    assert rows[-1][:3] == ("together", "10", "14")


def test_sections_leave_the_learner_as_it_was(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 6, 6, 3)), rng.integers(0, 3, 20)  # coloured images
    net = gbp.Sequential(gbp.Dense(3), gbp.SoftmaxObservation())
    learner = gbp.Learner(net, (6, 6, 3), iterations=3)
    learner.update(x[:8], y[:8])
    before = {n: np.asarray(b.eta).tobytes() for n, b in learner.posterior.items()}
    counts = learner.batches, learner.examples, learner.state.sizes
    p = np.asarray(learner.predict_proba(x))
    found = sections(Learnt(learner, x, y, p, 8), tmp_path)
    assert {n: np.asarray(b.eta).tobytes() for n, b in learner.posterior.items()} == before
    assert (learner.batches, learner.examples, learner.state.sizes) == counts
    told = {s.title: s for s in found}
    assert [r[0] for r in told["What each layer costs"].table[1:]] == ["dense", "softmax", "together"]
    assert sorted(f.name for f in tmp_path.glob("*.svg")) == [
        "calibration.svg",
        "filters.svg",
        "messages.svg",
        "uncertain.svg",
    ]
    assert "8 images" in told["How messages come to rest"].text


def test_nobody_knows_how_often_a_schedule_that_picks_will_visit():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (5,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    graph.add(gbp.Factor(lambda a: a, (x[:],), y=np.ones(5), sigma=1.0, linear=True, name="all"))
    (cost,) = group_costs(graph, schedule=gbp.Residual(), repeats=1)
    assert cost.visits is None
    assert [row[3] for row in cost_rows([cost])[1:]] == ["", ""]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_examples_are_drawn_too(count):
    x, p = np.zeros((count, 4, 4, 1)), np.tile([0.25, 0.75], (count, 1))
    figure = draw_uncertain(x, np.ones(count, int), p)
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == ["true 1, predicted 1\n(75%)"] * count
