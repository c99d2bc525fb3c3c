"""Data sets: their published files, whole or broken."""

import gzip
import struct

import numpy as np
import pytest

from gbplearn.data.images import Pixels, load_images

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array):
    """As published: two zeros, 8 for bytes, the number of axes, their sizes in big-endian order, the data."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    shapes = ((5, 4, 3), (5,), (2, 4, 3), (2,))
    return [rng.integers(0, 256 if len(s) > 1 else 10, s).astype(np.uint8) for s in shapes]


@pytest.mark.parametrize("packed", [False, True])
def test_images_are_what_the_files_hold(tmp_path, arrays, packed):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name, array in zip(FILES, arrays):
        data = idx(array)
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    images = load_images("mnist", tmp_path)
    assert images.train_x.shape == (5, 4, 3, 1)
    np.testing.assert_allclose(np.asarray(images.train_x)[..., 0], arrays[0] / 255, rtol=1e-6)
    np.testing.assert_allclose(images.test_x[[1]][..., 0], arrays[2][[1]] / 255, rtol=1e-6)
    assert images.train_x[:2].dtype == np.float32
    assert images.train_y.tolist() == arrays[1].tolist()
    assert images.test_y.tolist() == arrays[3].tolist()


@pytest.mark.parametrize("cut", [0, 3, 7, 15, -1])
def test_a_truncated_file_is_refused_by_name(tmp_path, arrays, cut):
    for name, array in zip(FILES, arrays):
        data = idx(array)
        (tmp_path / name).write_bytes(data[:cut] if name == FILES[0] else data)
    with pytest.raises(ValueError, match=FILES[0]):
        load_images("mnist", tmp_path)


def test_labels_that_do_not_fit_and_missing_files_are_refused(tmp_path, arrays):
    for name, array in zip(FILES, [arrays[0], arrays[1][:4], *arrays[2:]]):
        (tmp_path / name).write_bytes(idx(array))
    with pytest.raises(ValueError, match="do not fit"):
        load_images("mnist", tmp_path)
    (tmp_path / FILES[3]).unlink()
    with pytest.raises(ValueError, match=FILES[3]):
        load_images("mnist", tmp_path)
    with pytest.raises(ValueError, match="one of"):
        load_images("letters", tmp_path)


def test_pixels_are_bytes_until_they_are_asked_for():
    data = np.arange(24, dtype=np.uint8).reshape(2, 3, 4, 1)
    pixels = Pixels(data)
    assert (len(pixels), pixels.shape, np.shape(pixels)) == (2, (2, 3, 4, 1), (2, 3, 4, 1))
    np.testing.assert_array_equal(np.asarray(pixels), data / np.float32(255))
    np.testing.assert_array_equal(pixels[1:], data[1:] / np.float32(255))
    assert np.asarray(pixels, np.float64).dtype == np.float64
