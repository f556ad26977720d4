"""Downloads: whole or not at all, resumed where they broke, never without being asked.

The server is our own, on this machine.
"""

import hashlib
import http.server
import io
import itertools
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from glassformer.data import RemoteFile, data_root, download, fetch
from glassformer.errors import DataError

CONTENT = bytes(random_byte % 251 for random_byte in range(0, 300_007 * 7, 7))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """A file server that can be told to misbehave, and counts the bytes of every answer."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.resumes = True
        self.breaks_after: int | None = None
        self.served: list[int] = []
        self.ranges: list[str | None] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        self.thread = threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self.thread.start()

    def answer(self, request) -> None:
        if request.path != "/data.bin":
            request.send_error(404)
            return
        wanted = request.headers["Range"]
        self.ranges.append(wanted)
        first = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.resumes else 0
        if first >= len(self.content):
            request.send_error(416)
            return
        body = self.content[first:]
        request.send_response(206 if first else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.breaks_after is not None:
            body = body[: self.breaks_after]
        self.served.append(len(body))
        request.wfile.write(body)

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = Server()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def root(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def remote(server, sha256=SHA256, name="data.bin") -> RemoteFile:
    return RemoteFile("numbers", name, server.url + name, sha256)


def names(root) -> list[str]:
    return sorted(path.name for path in (root / "numbers").iterdir())


def test_data_root_follows_the_environment(monkeypatch, tmp_path):
    assert data_root() == tmp_path / "data"
    monkeypatch.delenv("GLASSFORMER_DATA")
    assert data_root().name == "glassformer"


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_download_is_whole_and_happens_once(server, root, capfd, sha256):
    path = fetch(remote(server, sha256))
    assert path == root / "numbers" / "data.bin"
    assert path.read_bytes() == CONTENT
    assert fetch(remote(server, sha256)) == path
    assert server.served == [len(CONTENT)]
    assert names(root) == ["data.bin"], "no part and no lock stay behind"
    assert capfd.readouterr() == ("", ""), "no bar where there is no terminal"


def test_nothing_is_downloaded_without_being_asked(server, root):
    message = r"data\.bin: is not there.*download=True.*get http.*by hand.*GLASSFORMER_DATA"
    with pytest.raises(DataError, match=message):
        fetch(remote(server), download=False)
    assert server.served == []
    assert not root.exists()
    fetch(remote(server))
    assert fetch(remote(server), download=False).read_bytes() == CONTENT


def test_a_broken_download_is_resumed_where_it_stopped(server, root):
    server.breaks_after = 120_011
    with pytest.raises(DataError, match="broke after 120011 of 300007 bytes; call again to resume"):
        fetch(remote(server))
    assert names(root) == ["data.bin.lock", "data.bin.part"], "never a part under the final name"
    with pytest.raises(DataError, match="is not there"):
        fetch(remote(server), download=False)
    server.breaks_after = 100_003
    with pytest.raises(DataError, match="broke after 220014 of 300007 bytes"):
        fetch(remote(server))
    server.breaks_after = None
    assert fetch(remote(server)).read_bytes() == CONTENT
    assert server.served == [120_011, 100_003, 300_007 - 220_014]
    assert server.ranges == [None, "bytes=120011-", "bytes=220014-"]
    assert names(root) == ["data.bin"]


def test_without_a_checksum_a_broken_download_begins_again(server):
    """Nothing would tell whether the two halves are of one file."""
    server.breaks_after = 120_011
    with pytest.raises(DataError, match="call again to try again"):
        fetch(remote(server, None))
    server.breaks_after = None
    assert fetch(remote(server, None)).read_bytes() == CONTENT
    assert server.served == [120_011, 300_007]


def test_a_server_that_cannot_resume_sends_all_again(server):
    server.resumes = False
    server.breaks_after = 120_011
    with pytest.raises(DataError, match="broke after 120011"):
        fetch(remote(server))
    server.breaks_after = None
    assert fetch(remote(server)).read_bytes() == CONTENT
    assert server.ranges[1] == "bytes=120011-"
    assert server.served == [120_011, 300_007]


def test_a_part_of_another_file_is_thrown_away(server, root):
    """The file changed on the server between the two attempts."""
    part = root / "numbers" / "data.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1009)
    assert fetch(remote(server)).read_bytes() == CONTENT
    assert server.served == [300_007 - 1009, 300_007]


@pytest.mark.parametrize("length", [300_007, 300_011])
def test_a_part_that_is_too_long_is_thrown_away(server, root, length):
    part = root / "numbers" / "data.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * length)
    assert fetch(remote(server)).read_bytes() == CONTENT
    assert server.served == [300_007]


def test_a_part_that_only_lacks_its_name_needs_no_network(server, root):
    """The process was killed between the last byte and the new name."""
    part = root / "numbers" / "data.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    assert fetch(remote(server)).read_bytes() == CONTENT
    assert server.ranges == []


def test_a_wrong_checksum_leaves_nothing_behind(server, root):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match=r"SHA-256 .*expected .*another file now.*by hand"):
        fetch(remote(server))
    assert names(root) == ["data.bin.lock"]
    server.content = CONTENT
    assert fetch(remote(server)).read_bytes() == CONTENT


def test_another_file_in_its_place_is_neither_used_nor_removed(server, root):
    path = root / "numbers" / "data.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    for asked in (True, False):
        with pytest.raises(DataError, match=r"data\.bin: 4 bytes that are not .*delete or rename"):
            fetch(remote(server), download=asked)
    assert path.read_bytes() == b"mine"
    assert server.ranges == []


def test_what_the_server_lacks_is_said(server, root):
    with pytest.raises(DataError, match=r"gone\.bin: the server answered 404 \(Not Found\); get"):
        fetch(remote(server, name="gone.bin"))


def test_no_network_says_what_to_do(server, root):
    file = remote(server)
    server.close()
    message = rf"cannot be reached \(.*refused.*put it at {re.escape(str(file.path))}"
    with pytest.raises(DataError, match=message):
        fetch(file)


def test_a_connection_that_fails_midway_keeps_its_part(server, monkeypatch, root):
    class Failing(io.BytesIO):
        def read(self, size=-1):
            if data := super().read(size):
                return data
            raise TimeoutError("timed out")

    monkeypatch.setattr(download, "CHUNK", 101)
    response = Failing(CONTENT[:1009])
    response.status, response.headers = 200, {"Content-Length": "300007"}
    with monkeypatch.context() as patched:
        patched.setattr(download, "_open", lambda file, have: response)
        with pytest.raises(DataError, match=r"cannot be reached \(timed out\)"):
            fetch(remote(server))
    assert (root / "numbers" / "data.bin.part").read_bytes() == CONTENT[:1009]
    assert fetch(remote(server)).read_bytes() == CONTENT
    assert server.served == [300_007 - 1009]


def test_many_at_once_download_once(server, root):
    with ThreadPoolExecutor(7) as pool:
        paths = list(pool.map(fetch, itertools.repeat(remote(server), 11)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert server.served == [300_007]
    assert names(root) == ["data.bin"]


def test_a_read_only_folder_serves_what_it_has(server, root, monkeypatch):
    fetch(remote(server))

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    # also for root, whom no mode stops
    monkeypatch.setattr(download.Path, "mkdir", refuse)
    folder = root / "numbers"
    folder.chmod(0o555)
    try:
        assert fetch(remote(server)).read_bytes() == CONTENT
        message = r"other\.bin: cannot be written \(Permission denied\).*GLASSFORMER_DATA.*by hand"
        with pytest.raises(DataError, match=message):
            fetch(remote(server, name="other.bin"))
    finally:
        folder.chmod(0o755)
    assert names(root) == ["data.bin"]


def test_a_bar_is_shown_on_a_terminal_only(server, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert fetch(remote(server)).read_bytes() == CONTENT
    assert "data.bin" in terminal.getvalue()
