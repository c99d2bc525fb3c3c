"""Data sets: their published files, whole or broken, found or downloaded."""

import gzip
import hashlib
import io
import socketserver
import struct
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbplearn.apps.data import known_files
from gbplearn.apps.data.cifar import read_binary, read_python
from gbplearn.apps.data.images import Images, Pixels, load_images
from gbplearn.apps.data.known_files import CIFAR_FILES, IDX_FILES, KNOWN, Download, KnownFiles

ADDRESS = "http://127.0.0.1:1/"  # nobody listens there


def md5(data):
    return hashlib.md5(data).hexdigest()


def idx(array):
    """As published: two zeros, 8 for bytes, the number of axes, their sizes in big-endian order, the data."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def binary(x, y):
    """As published: the class, then the image channel by channel."""
    return b"".join(bytes([c]) + image.transpose(2, 0, 1).tobytes() for image, c in zip(x, y))


def python2(x, y):
    """A pickle as Python 2 wrote it: strings of bytes, an array by `numpy.core.multiarray._reconstruct`."""
    pixels = x.transpose(0, 3, 1, 2).tobytes()
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05("
        + b"".join(bytes([ord("K"), c]) for c in y)
        + b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\x09U\x01b\x87R"
        + b"(K\x01K" + bytes([len(y)]) + b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89T"
        + struct.pack("<I", len(pixels)) + pixels
        + b"tbU\tfilenamesq\x0b]q\x0c(U\x05a.pngU\x06b2.pngeu."
    )  # fmt: skip


@pytest.fixture
def mnist(monkeypatch):
    """The four files of a small data set that passes for MNIST, and its arrays."""
    rng = np.random.default_rng(0)
    shapes = ((5, 4, 3), (5,), (2, 4, 3), (2,))
    arrays = [rng.integers(0, 256 if len(s) > 1 else 10, s).astype(np.uint8) for s in shapes]
    files = {name: idx(array) for name, array in zip(IDX_FILES, arrays)}
    packed = {f"{name}.gz": gzip.compress(data) for name, data in files.items()}
    downloads = {n: Download((f"{ADDRESS}{n}",), md5(data)) for n, data in packed.items()}
    monkeypatch.setitem(KNOWN, "mnist", KnownFiles({n: md5(d) for n, d in files.items()}, downloads))
    return files, packed, arrays


@pytest.fixture
def cifar(monkeypatch):
    """Six batches of three images that pass for CIFAR10, in both formats."""
    rng = np.random.default_rng(0)
    batches = [(rng.integers(0, 256, (3, 32, 32, 3)).astype(np.uint8), rng.integers(0, 10, 3)) for _ in CIFAR_FILES]
    files = {f"{name}.bin": binary(*b) for name, b in zip(CIFAR_FILES, batches)}
    files |= {name: python2(*b) for name, b in zip(CIFAR_FILES, batches)}
    monkeypatch.setitem(KNOWN, "cifar10", KnownFiles({n: md5(d) for n, d in files.items()}, {}))
    return files, batches


def fill(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("named", ["mnist", ""])
def test_images_are_what_the_files_hold(tmp_path, mnist, which, named):
    fill(tmp_path / "mnist", mnist[which])
    images, arrays = load_images("mnist", tmp_path / named), mnist[2]
    assert len(load_images("mnist", str(tmp_path / named)).train_y) == 5
    assert images.train_x.shape == (5, 4, 3, 1)
    np.testing.assert_allclose(np.asarray(images.train_x)[..., 0], arrays[0] / 255, rtol=1e-6)
    np.testing.assert_allclose(images.test_x[[1]][..., 0], arrays[2][[1]] / 255, rtol=1e-6)
    assert images.train_x[:2].dtype == np.float32
    assert images.train_y.tolist() == arrays[1].tolist()
    assert images.test_y.tolist() == arrays[3].tolist()


@pytest.mark.parametrize("cut", [0, 3, 7, 15, -1])
def test_a_truncated_file_is_refused_by_name(tmp_path, mnist, cut):
    fill(tmp_path / "mnist", {**mnist[0], IDX_FILES[0]: mnist[0][IDX_FILES[0]][:cut]})
    with pytest.raises(ValueError, match=IDX_FILES[0]):
        load_images("mnist", tmp_path)


def test_a_file_that_is_another_one_is_refused_by_name(tmp_path, mnist):
    other = bytearray(mnist[0][IDX_FILES[1]])
    other[-1] ^= 1
    fill(tmp_path / "mnist", {**mnist[0], IDX_FILES[1]: bytes(other)})
    with pytest.raises(ValueError, match=rf"{IDX_FILES[1]}: it is not the published"):
        load_images("mnist", tmp_path)
    fill(tmp_path / "mnist", {IDX_FILES[1]: gzip.compress(bytes(other))[:-3]})
    with pytest.raises(ValueError, match=rf"{IDX_FILES[1]}: the gzipped file is damaged"):
        load_images("mnist", tmp_path)


@pytest.mark.parametrize("ending", ["", ".bin"])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar_is_what_the_files_hold(tmp_path, cifar, ending, packed):
    files, batches = cifar
    inner = "cifar-10-batches-bin" if ending else "cifar-10-batches-py"
    chosen = {f"{name}{ending}": files[f"{name}{ending}"] for name in CIFAR_FILES}
    if packed:
        path = tmp_path / "cifar10" / f"cifar-10-{'binary' if ending else 'python'}.tar.gz"
        path.parent.mkdir()
        with tarfile.open(path, "w:gz") as archive:
            for name, data in chosen.items():
                entry = tarfile.TarInfo(f"{inner}/{name}")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    else:
        fill(tmp_path / "cifar10" / inner, chosen)
    images = load_images("cifar10", tmp_path)
    np.testing.assert_allclose(np.asarray(images.train_x), np.concatenate([b[0] for b in batches[:5]]) / 255, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(images.test_x), batches[5][0] / 255, rtol=1e-6)
    assert images.train_y.tolist() == np.concatenate([b[1] for b in batches[:5]]).tolist()
    assert images.test_y.tolist() == batches[5][1].tolist()


@pytest.mark.parametrize("ending", ["", ".bin"])
def test_a_broken_batch_of_cifar_is_refused_by_name(tmp_path, cifar, ending):
    chosen = {f"{name}{ending}": cifar[0][f"{name}{ending}"] for name in CIFAR_FILES}
    third = f"data_batch_3{ending}"
    changed = bytearray(chosen[third])
    changed[5000] ^= 1
    for broken in (chosen[third][:-1], chosen[third][:4000], b"", bytes(changed)):
        fill(tmp_path / "cifar10", {**chosen, third: broken})
        with pytest.raises(ValueError, match=third):
            load_images("cifar10", tmp_path)
    (tmp_path / "cifar10" / third).unlink()
    with pytest.raises(ValueError, match=f"{third}: there is no such file"):
        load_images("cifar10", tmp_path)


def test_a_broken_archive_of_cifar_is_refused_by_name(tmp_path, cifar):
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        entry.size = len(cifar[0]["data_batch_1.bin"])
        archive.addfile(entry, io.BytesIO(cifar[0]["data_batch_1.bin"]))
    with pytest.raises(ValueError, match=r"tar.gz: there is no cifar-10-batches-bin/data_batch_2.bin"):
        load_images("cifar10", tmp_path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz: the archive is damaged"):
        load_images("cifar10", tmp_path)


@given(st.binary(max_size=60) | st.binary(max_size=30).map(lambda b: b"\x80\x02}q\x01(U\x06labelsq\x04]q\x05(" + b))
def test_bytes_that_are_no_batch_are_refused(raw):
    for read in (read_python, read_binary):
        with pytest.raises(ValueError, match="some file"):
            read(raw, Path("some file"))


def test_a_pickle_is_not_executed(tmp_path):
    mark = tmp_path / "executed"
    evil = b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    with pytest.raises(ValueError, match="batch"):
        read_python(evil, Path("batch"))
    assert not mark.exists()


def test_missing_files_are_downloaded_and_checked(tmp_path, mnist, monkeypatch):
    there, folder = tmp_path / "there", tmp_path / "data"
    fill(there, mnist[1])
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), partial(Quiet, directory=str(there))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        downloads = {
            n: Download((f"{ADDRESS}{n}", f"{address}{n}"), md5(data))  # the first address does not answer
            for n, data in mnist[1].items()
        }
        monkeypatch.setitem(KNOWN, "mnist", KnownFiles(KNOWN["mnist"].content, downloads))
        images = load_images("mnist", folder)
        np.testing.assert_array_equal(images.train_y, mnist[2][1])
        assert sorted(p.name for p in (folder / "mnist").iterdir()) == sorted(mnist[1])

        last = f"{IDX_FILES[3]}.gz"
        (folder / "mnist" / last).unlink()
        (there / last).write_bytes(b"something else")
        with pytest.raises(ValueError, match=f"another hash.*put {last} into"):
            load_images("mnist", folder)
        assert last not in [p.name for p in (folder / "mnist").iterdir()]
        server.shutdown()


def test_what_cannot_be_had_is_asked_for(tmp_path, mnist, monkeypatch, capsys):
    with pytest.raises(ValueError, match=rf"cannot be downloaded.*put {IDX_FILES[0]}.gz, .* into {tmp_path}/mnist"):
        load_images("mnist", tmp_path)
    with pytest.raises(ValueError, match="nowhere: there is no such folder"):
        load_images("mnist", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="one of"):
        load_images("letters", tmp_path)
    monkeypatch.setenv("GBPLEARN_DATA", str(tmp_path / "set"))
    with pytest.raises(ValueError, match="set: there is no such folder"):
        load_images("mnist")
    fill(tmp_path / "set" / "mnist", mnist[0])
    assert len(load_images("mnist").train_y) == 5
    monkeypatch.delenv("GBPLEARN_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fill(tmp_path / "cache" / "gbplearn" / "data" / "mnist", mnist[1])
    assert len(load_images("mnist").train_y) == 5


def test_hashes_have_the_form_of_hashes():
    for data in known_files.KNOWN.values():
        for md5 in [*data.content.values(), *(d.md5 for d in data.downloads.values())]:
            assert len(bytes.fromhex(md5)) == 16


def test_pixels_are_bytes_until_they_are_asked_for():
    data = np.arange(24, dtype=np.uint8).reshape(2, 3, 4, 1)
    pixels = Pixels(data)
    assert (len(pixels), pixels.shape, np.shape(pixels)) == (2, (2, 3, 4, 1), (2, 3, 4, 1))
    np.testing.assert_array_equal(np.asarray(pixels), data / np.float32(255))
    np.testing.assert_array_equal(pixels[1:], data[1:] / np.float32(255))
    assert np.asarray(pixels, np.float64).dtype == np.float64


def test_centred_images_have_no_mean():
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (n, 4, 3, 2)).astype(np.uint8) for n in (7, 3))
    images = Images(Pixels(train), np.zeros(7, int), Pixels(test), np.zeros(3, int)).centred()
    mean = (train / 255).mean((0, 1, 2))
    np.testing.assert_allclose(np.asarray(images.train_x).mean((0, 1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(images.test_x[1], test[1] / 255 - mean, atol=1e-6)
    digits = load_images("digits").train_x
    assert (np.asarray(digits).min(), np.asarray(digits).max()) == (0, 1)  # 16 shades of grey


def test_files_of_another_data_set_in_the_folder_are_not_taken_for_damaged(tmp_path, mnist, capsys, monkeypatch):
    fill(tmp_path / "mnist", mnist[0])
    assert len(load_images("mnist", tmp_path / "mnist").train_y) == 5
    files = {n: Download((f"{ADDRESS}{n}",), "0" * 32) for n in KNOWN["fashion-mnist"].downloads}
    monkeypatch.setitem(KNOWN, "fashion-mnist", KnownFiles(KNOWN["fashion-mnist"].content, files))
    with pytest.raises(ValueError, match="fashion-mnist is not there and cannot be downloaded"):
        load_images("fashion-mnist", tmp_path / "mnist")
