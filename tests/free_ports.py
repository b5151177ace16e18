"""Ports for servers that a test starts, and starts anew at the same address."""

import random
import socket


def free_ports(number: int) -> list[int]:
    """Ports of the loopback that nobody listens on.

    Below those that Linux assigns by itself (from 32768), which a connection of another
    job may take before the server has it.
    """
    ports: list[int] = []
    while len(ports) < number:
        port = random.SystemRandom().randrange(10000, 32000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports
