"""Files are written whole or not at all, JSON is read with its size known beforehand, and locks exclude."""

import errno
import hashlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kip import files


def test_write_atomic_joins_its_parts_and_replaces_what_was_there(tmp_path):
    path = tmp_path / "a.bin"
    files.write_atomic(path, b"old")
    files.write_atomic(path, b"new, ", memoryview(b"and longer"), b"")
    assert path.read_bytes() == b"new, and longer"
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomic_keeps_to_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_atomic(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@given(st.text())
def test_as_text_keeps_what_is_text(text):
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert files.as_text(text) == text


def test_as_text_reads_bytes_that_the_locale_did_not():
    assert files.as_text("ÅÉ".encode().decode("ascii", "surrogateescape")) == "ÅÉ"
    assert files.as_text(b"\xe9t".decode("ascii", "surrogateescape")) == "\\xe9t"
    assert files.as_path(files.as_text("ÅÉ")) == Path("ÅÉ")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "a.bin"
    files.write_atomic(path, b"old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[call], fail)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_first_failure_is_the_one_told(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(FileNotFoundError):
        files.write_atomic(tmp_path / "missing" / "a", b"")


def test_data_reach_the_disk_before_the_name_does(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, Path.replace

    def flushed(handle):
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def renamed(self, target):
        calls.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    files.write_atomic(tmp_path / "a", b"x")
    assert calls == ["file", "rename", "folder"]


def test_a_folder_that_cannot_be_flushed_is_no_failure_but_a_broken_disk_is(tmp_path, monkeypatch):
    def fail_with(number):
        def fail(_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)

    fail_with(errno.EINVAL)
    files.flush_folder(tmp_path)
    fail_with(errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.flush_folder(tmp_path)


def test_a_killed_writer_leaves_a_partial_that_is_cleared_away(tmp_path):
    code = """
import os, pathlib, sys, time
from kip import files
os.fsync = lambda handle: (print("writing", flush=True), time.sleep(60))
files.write_atomic(pathlib.Path(sys.argv[1]) / "a.json", b"new")
"""
    files.write_atomic(tmp_path / "a.json", b"old")
    mine = tmp_path / ".notes.partial"
    mine.write_text("not ours")
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"writing\n"
    finally:
        child.kill()
        child.communicate()
    left = [path for path in tmp_path.iterdir() if path.name.startswith(".a.json.")]
    assert len(left) == 1
    files.remove_partials(tmp_path, "b.json")
    assert left[0].exists()
    files.remove_partials(tmp_path)
    assert sorted(tmp_path.iterdir()) == [mine, tmp_path / "a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"old"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    )
)
def test_json_comes_back_as_it_was(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "value.json"
    files.write_json(path, value)
    assert files.read_json(path) == value


def test_nan_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000])
def test_unreadable_json_names_the_file(tmp_path, data):
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"bad\.json is not readable JSON"):
        files.read_json(path)


def test_oversized_missing_and_special_files_are_refused_unread(tmp_path):
    sparse = tmp_path / "sparse.json"
    with sparse.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=f"at most {files.JSON_LIMIT}"):
        files.read_json(sparse)
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "missing.json")
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="not a regular file"):
        files.read_json(pipe)


def test_sha256_of_parts_is_that_of_the_whole():
    assert files.sha256(b"ab", memoryview(b"c"), b"") == hashlib.sha256(b"abc").hexdigest()


HOLDER = """
import pathlib, sys
from kip import files
with files.exclusive(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    code = [sys.executable, "-c", HOLDER, str(tmp_path / "run" / ".lock")]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


def test_a_lock_names_its_holder_to_all_who_ask_and_ends_when_it_is_killed(tmp_path, holder):
    path = tmp_path / "run" / ".lock"
    for _ in range(2):  # asking must not erase the answer
        with pytest.raises(BlockingIOError, match=f"locked by process {holder.pid}"), files.exclusive(path):
            pass
    holder.kill()
    holder.wait()
    with files.exclusive(path):
        assert path.read_text() == str(os.getpid())


def test_a_waiting_process_gets_the_lock_when_the_holder_is_done(tmp_path, holder):
    timer = threading.Timer(0.2, holder.stdin.close)
    timer.start()
    with files.exclusive(tmp_path / "run" / ".lock", wait=True):
        assert holder.wait(timeout=10) == 0
    timer.join()


def test_a_lock_is_released_after_an_error(tmp_path):
    with pytest.raises(KeyError), files.exclusive(tmp_path / ".lock"):
        raise KeyError
    with files.exclusive(tmp_path / ".lock"):
        pass


def test_a_lock_whose_holder_is_unknown_is_refused_all_the_same(tmp_path, holder):
    path = tmp_path / "run" / ".lock"
    path.write_bytes(b"\xff")
    with pytest.raises(BlockingIOError, match="locked by another process"), files.exclusive(path):
        pass


def refuse_locks(monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", fail)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_folder_that_cannot_be_locked_is_used_with_a_warning(tmp_path, monkeypatch, number):
    refuse_locks(monkeypatch, number)
    warned = pytest.warns(UserWarning, match=r"cannot be locked .*; let no other process write")
    with warned, files.exclusive(tmp_path / ".lock"):
        (tmp_path / "result").touch()
    assert (tmp_path / "result").exists()


def test_a_broken_disk_is_no_missing_lock(tmp_path, monkeypatch):
    refuse_locks(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), files.exclusive(tmp_path / ".lock"):
        pass
