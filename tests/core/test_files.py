"""Files that are written whole: nothing that is not ours is touched, and a reader sees the old file or the new one."""

import os
import socket
import stat
import subprocess
import sys

import pytest

import gbplearn as gbp
from checkpoint_files import classifier, state
from gbplearn.core import files
from gbplearn.core.files import write_whole


def put(path, data=b"new"):
    write_whole(path, lambda file: file.write(data))


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def special(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        place = os.getcwd()
        os.chdir(path.parent)  # the name of a socket may be about 100 characters long
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
        os.chdir(place)
    elif kind == "folder":
        path.mkdir()
    else:
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 7))  # as /dev/full
        except PermissionError:
            pytest.skip("only root makes devices")


@pytest.mark.parametrize("by_link", [False, True], ids=["itself", "by a link"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device"])
def test_only_files_are_replaced(kind, by_link, tmp_path):
    there = path = tmp_path / "run.safetensors"
    special(there, kind)
    before = there.lstat()
    if by_link:
        path = tmp_path / "link"
        path.symlink_to(there)
    for save in (classifier().save, put):
        with pytest.raises(OSError, match=f"cannot write {path}: it is a {kind}, not a file") as error:
            save(path)
        assert "\n" not in str(error.value)
    now = there.lstat()
    assert (now.st_ino, now.st_mode, now.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)
    assert set(tmp_path.iterdir()) == {there, path}


def test_a_planted_link_is_not_written_through(tmp_path, monkeypatch):
    """Neither under the name that versions before used, nor under one that is guessed."""
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    tokens = iter(["guessed", "guessed", "free"])
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: next(tokens))
    for name in (".v.safetensors.partial", ".gbplearn-guessed.partial"):
        (tmp_path / name).symlink_to(victim)
    before = set(tmp_path.iterdir())
    classifier().save(tmp_path / "v.safetensors")
    assert victim.read_text() == "mine"
    assert set(tmp_path.iterdir()) == {*before, tmp_path / "v.safetensors"}
    assert gbp.Learner.load(tmp_path / "v.safetensors").batches == 0


def test_a_link_stays_a_link(tmp_path):
    """Also over several links, into another folder, and if what it leads to is not there yet."""
    (tmp_path / "far").mkdir()
    far, link, chain = tmp_path / "far" / "run.safetensors", tmp_path / "link", tmp_path / "chain"
    link.symlink_to("far/run.safetensors")
    chain.symlink_to("link")
    for seed in (1, 2):
        classifier(seed=seed).save(chain)
        assert (os.readlink(chain), os.readlink(link)) == ("link", "far/run.safetensors")
        assert not far.is_symlink()
        assert state(gbp.Learner.load(far)) == state(classifier(seed=seed))
    assert os.listdir(tmp_path / "far") == ["run.safetensors"]


def test_links_in_a_circle_are_refused(tmp_path):
    for a, b in (("a", "b"), ("b", "a")):
        (tmp_path / a).symlink_to(b)
    with pytest.raises(OSError, match="symbolic links"):
        put(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o444, 0o666])
def test_permissions_are_kept(mode, tmp_path, umask):
    path = tmp_path / "run.safetensors"
    put(path, b"old")
    path.chmod(mode)
    put(path)
    assert (path.read_bytes(), mode_of(path)) == (b"new", mode)


def test_a_new_file_has_the_permissions_that_the_umask_gives(tmp_path, umask):
    put(tmp_path / "run.safetensors")
    assert mode_of(tmp_path / "run.safetensors") == 0o640


@pytest.mark.parametrize("old", [False, True], ids=["new", "replaced"])
def test_nobody_else_reads_a_file_that_is_being_written(old, tmp_path, umask):
    path, modes = tmp_path / "run.safetensors", []
    if old:
        put(path)

    def write(file):
        modes.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))

    write_whole(path, write)
    assert modes == [0o600]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_is_kept(tmp_path):
    path = tmp_path / "run.safetensors"
    put(path, b"old")
    os.chown(path, 12345, 54321)
    path.chmod(0o4750)
    put(path)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 54321, 0o4750)


@pytest.mark.parametrize(("allowed", "mode"), [("group", 0o674), ("nothing", 0o644)])
def test_where_the_owner_cannot_be_kept_nobody_gains_anything(allowed, mode, tmp_path, monkeypatch):
    """The bits of a group belong to that group; those that make a program run as its owner to that owner."""
    path, real = tmp_path / "run.safetensors", os.stat_result
    put(path, b"old")
    path.chmod(0o6674)
    owned = path.stat()
    other = real([*owned[:4], owned.st_uid + 1, owned.st_gid + 1, *owned[6:]])
    monkeypatch.setattr(files, "existing", lambda _: other)

    def chown(handle, user, group):
        if user != -1 or allowed != "group":
            raise PermissionError
        assert group == owned.st_gid + 1

    monkeypatch.setattr(os, "fchown", chown)
    put(path)
    assert (path.read_bytes(), mode_of(path)) == (b"new", mode)


def test_what_is_written_is_on_the_disk_before_it_has_its_name_and_so_is_the_name(tmp_path, monkeypatch):
    path, data, events = tmp_path / "run.safetensors", bytes(100_000), []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        found = os.fstat(handle)
        fsync(handle)
        events.append(("folder" if stat.S_ISDIR(found.st_mode) else found.st_size, found.st_ino))

    def replaced(source, target):
        events.append(("name", os.stat(source).st_ino))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    for _ in range(2):  # a new file, and one that is replaced
        events.clear()
        put(path, data)
        file, folder = path.stat().st_ino, tmp_path.stat().st_ino
        assert events == [(len(data), file), ("name", file), ("folder", folder)]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_what_fails_leaves_the_old_file_and_nothing_else(step, tmp_path, monkeypatch):
    path = tmp_path / "run.safetensors"
    put(path, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    if step != "write":
        monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, fail if step == "write" else lambda file: file.write(b"new"))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_named_with_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        put(tmp_path / "none" / "run.safetensors")
    assert error.value.filename == str(tmp_path / "none" / "run.safetensors")


def test_the_longest_name_that_a_file_may_have(tmp_path):
    put(tmp_path / ("n" * 255))
    assert os.listdir(tmp_path) == ["n" * 255]


def test_a_save_within_a_save(tmp_path):
    """Two writers side by side, in an order that is always the same: each has its name, the last one to finish wins."""
    path = tmp_path / "run.safetensors"

    def write(file):
        file.write(b"outer ")
        put(path, b"inner")
        assert path.read_bytes() == b"inner"
        file.write(b"writer")

    write_whole(path, write)
    assert path.read_bytes() == b"outer writer"
    assert list(tmp_path.iterdir()) == [path]


SAVER = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("files", sys.argv[1])  # without JAX: to save takes no more
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
raised = 0
for _ in range(150):
    try:
        files.write_whole(Path(sys.argv[2]), lambda file: [file.write(sys.argv[3].encode() * 1000) for _ in range(50)])
    except Exception:
        raised += 1
print(raised)
"""


def test_two_processes_save_to_one_path(tmp_path):
    path = tmp_path / "run.safetensors"
    whole = [letter * 50_000 for letter in (b"a", b"b")]
    put(path, whole[0])
    words = [sys.executable, "-c", SAVER, files.__file__, str(path)]
    savers = [subprocess.Popen([*words, letter], stdout=subprocess.PIPE, text=True) for letter in "ab"]
    whole_files = []
    while any(saver.poll() is None for saver in savers):
        whole_files.append(path.read_bytes() in whole)
    assert [saver.communicate()[0].strip() for saver in savers] == ["0", "0"]
    assert all(whole_files)
    assert len(whole_files) > 0
    assert list(tmp_path.iterdir()) == [path]
