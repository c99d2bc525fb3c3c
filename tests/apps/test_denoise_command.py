"""`gbplearn denoise` and GBPDenoiser: kinds of files and arrays, and what is refused. What is cleaned is small."""

import dataclasses
import os
import re
import struct
import zlib
from functools import partial

import numpy as np
import pytest
from PIL import Image

import gbplearn as gbp
from browser import shows_in_a_browser
from gbplearn.apps.cli import main
from gbplearn.apps.data.video import corrupt
from gbplearn.apps.denoising import denoiser
from gbplearn.apps.denoising.best import Denoised
from gbplearn.apps.denoising.denoiser import GBPDenoiser, in_tiles
from gbplearn.apps.denoising.layered import LayeredModel, learn_frame
from gbplearn.apps.denoising.pictures import open_frames
from gbplearn.apps.image_scores import psnr, ssim

HEIGHT, WIDTH = 24, 32


@pytest.fixture
def clean():
    rows, columns = np.mgrid[:HEIGHT, :WIDTH] / HEIGHT
    texture = 0.01 * np.random.default_rng(0).standard_normal((HEIGHT, WIDTH))
    light = 0.5 + 0.3 * np.sin(3 * rows + 2 * columns) + texture
    return np.round(255 * light[..., None] * [1.0, 0.9, 0.8]).clip(0, 255).astype(np.uint8)


@pytest.fixture
def noisy(clean):
    return np.round(255 * corrupt(clean[None] / 255, 0.1, seed=1)[0][0]).astype(np.uint8)


@pytest.fixture
def quick(monkeypatch):
    """Cleans by a median, which is not what is tested."""

    def median(frame, seen=None, settings=None, beside=None):
        padded = np.pad(frame, ((1, 1), (1, 1), (0, 0)), mode="edge")
        height, width = frame.shape[:2]
        windows = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3)]
        found = np.median(windows, 0)
        holes = np.zeros(frame.shape[:2]) if seen is None else 1.0 - seen
        return Denoised(found, np.full(frame.shape, 0.125), holes)

    monkeypatch.setattr(denoiser, "denoise_best", median)


def save(path, image):
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(path)
    return path


def read(path):
    with Image.open(path) as image:
        return np.asarray(image)


def refused(capsys, *words):
    """The line that is said; exit code 2."""
    assert main(["denoise", *map(str, words)]) == 2
    out = capsys.readouterr()
    (line,) = out.err.strip().splitlines()
    return line


def test_an_image_by_messages(clean, noisy, tmp_path, capsys):
    source = save(tmp_path / "noisy.png", noisy)
    save(tmp_path / "clean.png", clean)
    words = ["denoise", source, tmp_path / "out.png", "--clean", tmp_path / "clean.png"]
    words += ["--noise-map", tmp_path / "map.png", "--std", tmp_path / "std.png"]
    assert main([str(w) for w in words]) == 0
    said = capsys.readouterr().out
    found = read(tmp_path / "out.png")
    reached = psnr(found / 255, clean / 255)
    assert reached > psnr(noisy / 255, clean / 255) + 8
    told = re.search(r"PSNR ([\d.]+) dB \(noisy: ([\d.]+) dB\), SSIM 0\.99", said)
    assert float(told[1]) == pytest.approx(reached, abs=0.2)  # before it was rounded to bytes
    assert float(told[2]) == pytest.approx(psnr(noisy / 255, clean / 255), abs=0.01)
    changed = (noisy != clean).any(-1)
    assert (read(tmp_path / "map.png")[changed] > 127).mean() > 0.9
    assert read(tmp_path / "std.png").shape == clean.shape
    written = {"out.png", "map.png", "std.png", "out.report.html"}
    assert {p.name for p in tmp_path.iterdir()} == {"noisy.png", "clean.png", *written}
    page = (tmp_path / "out.report.html").read_text()
    assert f"Open {tmp_path / 'out.report.html'}" in said
    assert f"{float(told[1]):.2f} dB" in page
    assert re.search(rf"smooth/inside</td><td>{3 * (HEIGHT - 2) * (WIDTH - 2):,}</td>", page)  # second differences
    assert page.count("<img") == 2
    shows_in_a_browser(tmp_path / "out.report.html", pictures=2)


def test_grey_images_of_16_bits(clean, tmp_path, quick):
    Image.fromarray(clean[..., 0].astype(np.uint16) * 257).save(tmp_path / "deep.png")
    save(tmp_path / "plain.png", clean[..., :1])
    found = []
    for name in ("deep", "plain"):
        assert main(["denoise", str(tmp_path / f"{name}.png"), str(tmp_path / "out.png"), "--no-report"]) == 0
        found.append(read(tmp_path / "out.png"))
    np.testing.assert_array_equal(*found)


def test_a_palette_with_transparent_colours_is_read_without_a_warning(clean, tmp_path, quick):
    """What is transparent is shown in its colour, as in an RGBA image."""
    alpha = np.full((*clean.shape[:2], 1), 128, np.uint8)
    rgba = Image.fromarray(np.concatenate([clean, alpha], -1))
    rgba.save(tmp_path / "rgba.png")
    rgba.quantize(256).save(tmp_path / "palette.png")
    with Image.open(tmp_path / "palette.png") as image:
        assert isinstance(image.info["transparency"], bytes)
    for name, most in (("rgba", 0), ("palette", 40)):
        (frame,) = open_frames(tmp_path / f"{name}.png").read()
        assert frame.shape == clean.shape
        assert abs(frame.astype(int) - clean).max() <= most
        assert main(["denoise", str(tmp_path / f"{name}.png"), str(tmp_path / "out.png"), "--no-report"]) == 0


def png(path, width, height):
    """A file that says that it is so large, and holds nothing."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize("place", ["input", "mask", "clean"])
def test_a_decompression_bomb_is_refused_in_a_line(place, clean, tmp_path, capsys, quick):
    bomb, fine = png(tmp_path / "bomb.png", 40_000, 40_000), save(tmp_path / "fine.png", clean)
    more = [] if place == "input" else [f"--{place}", bomb]
    line = refused(capsys, bomb if place == "input" else fine, tmp_path / "out.png", *more)
    assert line == f"gbplearn: {bomb} cannot be read: it has more than 178,956,970 pixels"
    assert {p.name for p in tmp_path.iterdir()} == {"bomb.png", "fine.png"}


def test_a_very_large_image_is_read_without_a_warning(tmp_path, capsys):
    """Pillow warns of images that are half as large as those that it refuses."""
    line = refused(capsys, png(tmp_path / "large.png", 12_000, 10_000), tmp_path / "out.png")
    assert "large.png cannot be read: image file is truncated" in line


def test_a_jpeg_is_cleaned_with_a_word(clean, tmp_path, capsys, quick):
    for name, words in (("a.jpg", 1), ("a.png", 0)):
        source = save(tmp_path / name, clean)
        assert main(["denoise", str(source), str(tmp_path / "b.png"), "--no-report"]) == 0
        assert capsys.readouterr().out.count("a JPEG smears") == words


def test_the_report_of_a_model_that_learns_filters(noisy, tmp_path, monkeypatch):
    """It does not know which pixels held nonsense; what it writes is a folder."""
    quick = dataclasses.replace(denoiser.LAYERED["pairwise"], iterations=3)
    monkeypatch.setitem(denoiser.LAYERED, "pairwise", quick)
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "0.png", noisy)
    assert main(["denoise", str(tmp_path / "in"), str(tmp_path / "out"), "--model", "pairwise"]) == 0
    page = (tmp_path / "out.report.html").read_text()
    assert "held nonsense" not in page
    assert "3 iterations" not in page  # that is in the picture
    assert page.count("<img") == 2


def test_each_frame_is_compared_with_its_own_truth(clean, noisy, tmp_path, capsys, quick):
    """Also where a frame is finished when the next one has been read."""
    grey = np.full_like(clean, 128)
    given, truth = [noisy, grey], [clean, clean // 2]
    for name, frames in (("noisy", given), ("clean", truth)):
        (tmp_path / name).mkdir()
        for number, frame in enumerate(frames):
            save(tmp_path / name / f"{number}.png", frame)
    words = ["denoise", tmp_path / "noisy", tmp_path / "out", "--clean", tmp_path / "clean", "--model", "best-video"]
    words += ["--no-report"]
    assert main([str(w) for w in words]) == 0
    said = capsys.readouterr().out
    expected = np.mean([psnr(n / 255, t / 255) for n, t in zip(given, truth)])
    assert float(re.search(r"noisy: ([\d.]+) dB", said)[1]) == pytest.approx(expected, abs=0.01)
    assert re.search(r"factors a graph: pixels [\d,]+, previous [\d,]+, next [\d,]+, smooth/inside", said)


@pytest.mark.parametrize("kind", ["image", "folder"])
def test_nothing_of_the_users_is_lost(kind, noisy, tmp_path, quick):
    """What has a name that versions before used while they wrote stays, and a link stays one."""
    (tmp_path / "in").mkdir()
    (tmp_path / "far").mkdir()
    save(tmp_path / "in" / "0.png", noisy)
    source, name = (tmp_path / "in", "out") if kind == "folder" else (tmp_path / "in" / "0.png", "out.png")
    mine = tmp_path / f".{name}.partial"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    (tmp_path / name).symlink_to(f"far/{name}")
    assert main(["denoise", str(source), str(tmp_path / name), "--no-report"]) == 0
    assert (mine / "thesis.txt").read_text() == "mine"
    assert (tmp_path / name).is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([mine.name, "far", "in", name])
    assert [p.name for p in (tmp_path / "far").iterdir()] == [name]
    found = tmp_path / name / "0.png" if kind == "folder" else tmp_path / name
    assert read(found).shape == noisy.shape


def test_an_output_that_is_no_file_is_refused(noisy, tmp_path, capsys, quick):
    os.mkfifo(tmp_path / "out.png")
    line = refused(capsys, save(tmp_path / "in.png", noisy), tmp_path / "out.png")
    assert line == f"gbplearn: cannot write {tmp_path / 'out.png'}: it is a pipe, not a file"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.png", "out.png"]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("shape", ["grey", "colour", "video"])
def test_arrays_come_back_as_they_went_in(noisy, dtype, shape, quick):
    x = {"grey": noisy[..., 0], "colour": noisy, "video": np.stack([noisy, noisy[::-1]])}[shape]
    x = x if dtype is np.uint8 else (x / 255).astype(dtype)
    model = GBPDenoiser()
    found = model.fit_transform(x)
    assert found.dtype == x.dtype
    assert found.shape == model.std_.shape == x.shape
    assert model.corrupt_.shape == (x.shape if shape == "grey" else x.shape[:-1])
    middle = np.median(x[1:4, 1:4], (0, 1)) if shape != "video" else np.median(x[0, 1:4, 1:4], (0, 1))
    np.testing.assert_allclose(found[2, 2] if shape != "video" else found[0, 2, 2], middle, atol=1e-6)


def test_arrays_that_are_no_images(noisy, quick):
    for x, words in (
        (np.zeros((4, 5, 2), np.uint8), r"shape \(height, width\)"),
        (np.zeros((4, 5), int), "bytes or numbers in"),
        (noisy.astype(float), "divide by the largest"),
        (np.zeros((2, 9), np.uint8), "at least 3 x 3"),
    ):
        with pytest.raises(ValueError, match=words):
            GBPDenoiser().fit_transform(x)
    with pytest.raises(ValueError, match="model must be one of best, best-video, pairwise"):
        GBPDenoiser("median").fit_transform(noisy)
    for mask, words in ((np.zeros((3, 3), bool), "mask must be"), (np.ones((HEIGHT, WIDTH), bool), "all pixels")):
        with pytest.raises(ValueError, match=words):
            GBPDenoiser().fit_transform(noisy, mask=mask)


def test_the_paper_s_networks_learn_from_frame_to_frame(noisy, monkeypatch):
    short = dataclasses.replace(denoiser.LAYERED["single-layer"], iterations=5)
    monkeypatch.setitem(denoiser.LAYERED, "single-layer", short)
    two = GBPDenoiser("single-layer").fit_transform(np.stack([noisy, noisy]))
    one = GBPDenoiser("single-layer").fit_transform(noisy)
    np.testing.assert_array_equal(two[0], one)
    assert (two[1] != two[0]).any()  # it has learnt in between


@pytest.mark.parametrize(
    ("height", "width"), [(24, 33), *(pytest.param(*s, marks=pytest.mark.slow) for s in ((30, 42), (27, 32)))]
)
def test_the_deep_network_takes_images_of_any_size(height, width):
    """It wants sides of 4 n + 2: what an image lacks is there, but missing."""
    model = denoiser.LAYERED["five-layer"]
    larger = model.fitting((height, width, 3))
    assert larger == (height + (2 - height) % 4, width + (2 - width) % 4, 3)
    image = np.full((height, width, 3), 0.2)
    learner = dataclasses.replace(model, iterations=2).learner(larger)
    mean, std, report = learn_frame(learner, image)
    assert report.accepted
    assert mean.shape == std.shape == image.shape
    np.testing.assert_allclose(mean, image, atol=0.1)


def test_missing_pixels_are_not_drawn_to_black():
    """Which of them are missing has nothing to do with how bright they are: on average they are right."""
    model = dataclasses.replace(denoiser.LAYERED["single-layer"], iterations=100)
    rows, columns = np.mgrid[:34, :42]
    light = 0.7 + 0.2 * np.sign(np.sin(1.1 * rows) * np.sin(0.9 * columns))
    image, seen = (
        (light[..., None] * np.ones(3)).astype(np.float32),
        np.random.default_rng(0).random(light.shape) > 0.15,
    )
    mean, std, _ = learn_frame(model.learner(image.shape), np.where(seen[..., None], image, np.nan), seen)
    assert abs((mean - image)[~seen].mean()) < 0.1
    assert std[~seen].mean() > std[seen].mean()


def test_large_frames_are_learnt_from_tile_by_tile(monkeypatch):
    net = gbp.Sequential(
        gbp.GaussianObservation(sigma=0.2),
        gbp.ConvTranspose2D(2, kernel=3, sigma=0.1, weight_prior=0.15, prior=0.5),
        gbp.Upsample2D(2, sigma=0.03, prior=1.0),
    )
    model = LayeredModel(lambda: net, 30, 0.9, 0.0, carry=("upsample",))
    monkeypatch.setitem(denoiser.LAYERED, "five-layer", model)
    taken = []

    def learn(learner, frame, seen, carry, carried):
        found = learn_frame(learner, frame, seen, carry, carried)
        taken.append((learner.batches, frame.shape, carried, found[2].carried))
        return found

    monkeypatch.setattr(denoiser, "learn_frame", learn)
    monkeypatch.setattr(denoiser, "in_tiles", partial(in_tiles, tile=16, margin=4))
    rows, columns = np.mgrid[:40, :24]
    frame = (0.5 + 0.3 * np.sin(rows / 4) * np.cos(columns / 5))[..., None] * np.ones(3)
    found = GBPDenoiser("five-layer").fit_transform(np.stack([frame, frame]))
    # What was learnt from a tile is known to the next; messages go on at the same place of the next frame.
    assert [t[:2] for t in taken] == [(n, (24, 24, 3)) for n in (1, 2, 3, 4)]
    assert [t[2] for t in taken[:2]] == [None, None]
    assert all(now[2] is before[3] for now, before in zip(taken[2:], taken[:2]))
    assert np.abs(found - frame).mean() < 0.5 * np.abs(frame - frame.mean()).mean()


def moving(tones):
    """Texture that no neighbour foretells, but the frame before does; clean, noisy, and where."""
    rng = np.random.default_rng(6)
    wide = np.kron(rng.uniform(0.3, 0.7, (4, 10)), np.ones((6, 6))) + 0.05 * rng.standard_normal((HEIGHT, 60))
    clean = np.clip(np.stack([wide[:, 2 * i : 2 * i + WIDTH] for i in range(3)])[..., None] * tones, 0, 1)
    return clean, *corrupt(clean, 0.1, seed=2)


@pytest.mark.slow
def test_frames_beside_help_where_things_move():
    clean, noisy, mask = moving([1.0, 0.9, 0.8])
    alone, beside = (GBPDenoiser(model).fit_transform(noisy) for model in ("best", "best-video"))
    assert psnr(beside[1][mask[1]], clean[1][mask[1]]) > psnr(alone[1][mask[1]], clean[1][mask[1]]) + 3
    np.testing.assert_array_equal(GBPDenoiser("best-video").fit_transform(noisy[0]), alone[0])  # nothing beside it


@pytest.mark.slow
def test_grey_frames_beside():
    clean, noisy, _ = moving([1.0])
    assert psnr(GBPDenoiser("best-video").fit_transform(noisy)[1], clean[1]) > psnr(noisy[1], clean[1]) + 3


def test_large_frames_in_tiles(quick):
    frame = np.random.default_rng(0).random((45, 61, 3))
    whole = in_tiles(denoiser.denoise_best, frame, tile=100)
    for tile, margin in ((16, 4), (20, 3), (45, 1), (7, 2)):
        for a, b in zip(in_tiles(denoiser.denoise_best, frame, tile=tile, margin=margin)[:3], whole):
            np.testing.assert_array_equal(a, b)  # a median sees one pixel far


def test_folders_and_videos_in_any_combination(clean, tmp_path, quick):
    folder = tmp_path / "frames"
    folder.mkdir()
    for number in range(3):
        save(folder / f"{number}.png", np.roll(clean, number, 1))
    for source, target in (("frames", "out"), ("frames", "out.mp4"), ("out.mp4", "back"), ("frames", "out.gif")):
        assert main(["denoise", str(tmp_path / source), str(tmp_path / target), "--no-report"]) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0.png", "1.png", "2.png"]
    for name in ("out", "out.mp4", "out.gif", "back"):
        frames = list(open_frames(tmp_path / name).read())
        assert len(frames) == len(open_frames(tmp_path / name)) == 3
        assert frames[1].shape == clean.shape
    # What was encoded twice is still the picture.
    back = list(open_frames(tmp_path / "back").read())
    assert psnr(back[1] / 255, read(tmp_path / "out" / "1.png") / 255) > 20
    assert not [p for p in tmp_path.iterdir() if "partial" in p.name]


def test_missing_pixels_are_white_in_the_mask(clean, tmp_path, quick):
    missing = np.zeros((HEIGHT, WIDTH, 1), np.uint8)
    missing[3:5, 4:9] = 255
    source, mask = save(tmp_path / "a.png", clean), save(tmp_path / "mask.png", missing)
    out, told = tmp_path / "b.png", tmp_path / "map.png"
    assert main(["denoise", str(source), str(out), "--mask", str(mask), "--noise-map", str(told), "--no-report"]) == 0
    np.testing.assert_array_equal(read(told), missing[..., 0])


def test_bad_files_are_refused_in_a_line_and_nothing_is_written(clean, tmp_path, capsys, quick):
    whole = save(tmp_path / "a.jpg", clean).read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "no.mp4").write_bytes(b"nothing")
    save(tmp_path / "small.png", clean[:2])
    save(tmp_path / "other.png", clean[:9])
    sizes, none = tmp_path / "sizes", tmp_path / "none"
    for folder in (sizes, none, tmp_path / "there"):
        folder.mkdir()
    save(sizes / "0.png", clean)
    save(sizes / "1.png", clean[:-2])
    before = sorted(tmp_path.rglob("*"))
    a, out = tmp_path / "a.jpg", tmp_path / "out.png"
    for words, complaint in (
        ((tmp_path / "cut.jpg", out), "cut.jpg cannot be read"),
        ((tmp_path / "empty.png", out), "empty.png is no image"),
        ((tmp_path / "no.mp4", tmp_path / "o"), "no.mp4 cannot be read"),
        ((tmp_path / "gone.png", out), "gone.png: there is no such file"),
        ((tmp_path / "small.png", out), "at least 3 x 3 pixels"),
        ((none, tmp_path / "o"), "none holds no images"),
        ((sizes, tmp_path / "o"), "frame 1 is 32 x 22, those before are 32 x 24"),
        ((sizes, tmp_path / "o.mp4"), "frame 1 is 32 x 22, those before are 32 x 24"),
        ((sizes, out), "2 frames do not fit into an image"),
        ((sizes, tmp_path / "there"), "there is there already"),
        ((a, tmp_path / "out.xyz"), "an image ends with"),
        ((a, a), "must be different files"),
        ((a, out, "--std", out), "must be different files"),
        ((a, tmp_path / "nowhere" / "out.png"), "nowhere: there is no such folder"),
        ((a, out, "--clean", tmp_path / "other.png"), "the clean frames are 32 x 9"),
        ((a, out, "--clean", sizes), "holds 2 frames"),
        ((a, out, "--mask", tmp_path / "other.png"), "other.png is 32 x 9"),
        ((a, out, "--noise-map", tmp_path / "nowhere" / "map.png"), "nowhere: there is no such folder"),
        ((a, out, "--noise-map", tmp_path / "m.png", "--model", "pairwise"), "pairwise does not say which pixels"),
    ):
        assert complaint in refused(capsys, *words)
        assert sorted(tmp_path.rglob("*")) == before


def test_an_interruption_leaves_nothing_behind(clean, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(denoiser, "denoise_best", stop)
    source = save(tmp_path / "a.png", clean)
    assert main(["denoise", str(source), str(tmp_path / "b.png")]) == 130
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_structural_similarity_by_hand(clean):
    """At one pixel, with the window written out; equal images have 1."""
    x, y = clean / 255, np.clip(clean / 255 + 0.1 * np.random.default_rng(1).standard_normal(clean.shape), 0, 1)
    assert ssim(x, x) == pytest.approx(1.0)
    reach = np.arange(-5, 6)
    window = np.exp(-(reach[:, None] ** 2 + reach**2) / (2 * 1.5**2))
    window /= window.sum()
    sums = []
    for i in range(HEIGHT):
        for j in range(WIDTH):
            rows, columns = (_reflect(place + reach, size) for place, size in ((i, HEIGHT), (j, WIDTH)))
            for c in range(3):
                a, b = x[np.ix_(rows, columns)][..., c], y[np.ix_(rows, columns)][..., c]
                ma, mb = (window * a).sum(), (window * b).sum()
                va, vb = (window * (a - ma) ** 2).sum(), (window * (b - mb) ** 2).sum()
                both = (window * (a - ma) * (b - mb)).sum()
                sums.append((2 * ma * mb + 1e-4) * (2 * both + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)))
    assert ssim(x, y) == pytest.approx(np.mean(sums), rel=1e-6)


def _reflect(places, size):
    places = np.where(places < 0, -1 - places, places)
    return np.where(places >= size, 2 * size - 1 - places, places)
