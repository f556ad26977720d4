"""No test may reach another host. Python runs this file first where its folder is in PYTHONPATH,
so it holds for kernels, commands and workers that tests start, too."""

import socket
import sys


def _refuse_other_hosts(event, arguments):
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if isinstance(host, bytes):
        host = host.decode()
    here = {None, "", "localhost", "::1", "::", "0.0.0.0", socket.gethostname()}
    if host not in here and not host.startswith("127."):
        raise RuntimeError(f"a test reached for the host {host!r}; tests work without a network")


sys.addaudithook(_refuse_other_hosts)
