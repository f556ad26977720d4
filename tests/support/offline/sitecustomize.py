"""No test may reach another host. Python runs this file first where its folder is in PYTHONPATH,
so it holds for kernels, commands and workers that tests start, too.

An audit hook would need fewer lines, but CPython 3.11 calls it in the middle of `sys.settrace`:
two threads that start at once under a coverage run then collide, and one of them dies.
"""

import functools
import socket

HERE = {None, "", "localhost", "::1", "::", "0.0.0.0", socket.gethostname()}


def _require_here(host):
    if isinstance(host, bytes):
        host = host.decode()
    if host not in HERE and not host.startswith("127."):
        raise RuntimeError(f"a test reached for the host {host!r}; tests work without a network")


def _guard_names(look_up):
    @functools.wraps(look_up)
    def guarded(host, *arguments, **options):
        _require_here(host)
        return look_up(host, *arguments, **options)

    return guarded


def _guard_addresses(connect):
    @functools.wraps(connect)
    def guarded(self, address):
        if isinstance(address, tuple):  # not a file, as for a socket of this machine
            _require_here(address[0])
        return connect(self, address)

    return guarded


socket.getaddrinfo = _guard_names(socket.getaddrinfo)
socket.gethostbyname = _guard_names(socket.gethostbyname)
socket.socket.connect = _guard_addresses(socket.socket.connect)
socket.socket.connect_ex = _guard_addresses(socket.socket.connect_ex)
