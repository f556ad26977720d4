"""The guard that keeps every test, and every process that a test starts, off the network."""

import socket
import subprocess
import sys

import pytest


def test_another_host_is_refused():
    with pytest.raises(RuntimeError, match=r"reached for the host 'example\.org'"):
        socket.create_connection(("example.org", 80), timeout=1)


def test_a_bare_address_is_refused():
    with socket.socket() as probe, pytest.raises(RuntimeError, match=r"192\.0\.2\.1"):
        probe.connect(("192.0.2.1", 80))


def test_this_machine_is_not():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        server.listen()
        socket.create_connection(server.getsockname()).close()


def test_a_process_that_a_test_starts_is_bound_too():
    program = "import urllib.request; urllib.request.urlopen('http://example.org', timeout=1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "tests work without a network" in done.stderr
