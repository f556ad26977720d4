"""The guard that keeps every test, and every process that a test starts, off the network."""

import socket
import subprocess
import sys

import pytest

# threads that start threads under a tracer, as a coverage run does it, switching all the time
CROWD = """
import sys, threading

lost = []
threading.excepthook = sys.unraisablehook = lost.append
threading.settrace(lambda *_: None)
sys.setswitchinterval(1e-6)

def crowd():
    for _ in range(1_500):
        threading.Thread(target=int, daemon=True).start()

crowds = [threading.Thread(target=crowd, daemon=True) for _ in range(8)]
for one in crowds:
    one.start()
for one in crowds:
    one.join(60)
print(len(lost), flush=True)
"""


def test_another_host_is_refused():
    with pytest.raises(RuntimeError, match=r"reached for the host 'example\.org'"):
        socket.create_connection(("example.org", 80), timeout=1)


def test_a_bare_address_is_refused():
    with socket.socket() as probe, pytest.raises(RuntimeError, match=r"192\.0\.2\.1"):
        probe.connect(("192.0.2.1", 80))


def test_a_name_is_not_looked_up_either():
    with pytest.raises(RuntimeError, match=r"reached for the host 'example\.org'"):
        socket.gethostbyname(b"example.org")


def test_this_machine_is_not():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        server.listen()
        socket.create_connection(server.getsockname()).close()


def test_a_process_that_a_test_starts_is_bound_too():
    program = "import urllib.request; urllib.request.urlopen('http://example.org', timeout=1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "tests work without a network" in done.stderr


def test_threads_that_start_at_once_all_live():
    done = subprocess.run([sys.executable, "-c", CROWD], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)
