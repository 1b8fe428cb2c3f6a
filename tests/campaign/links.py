"""Lets a process reach its servers through links that can be cut. Its addresses stay as they are."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any


def use_links(ports: Mapping[str, int]) -> None:
    """Connect to another port of this machine where one is named.

    Args:
        ports: Port of a server, as text -> port of its link.
    """
    connect = socket.socket.connect

    def linked(own: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and str(address[1]) in ports:
            address = (address[0], ports[str(address[1])], *address[2:])
        connect(own, address)

    if ports:
        socket.socket.connect = linked  # pyright: ignore[reportAttributeAccessIssue]
