"""Hosts in requests to web servers: which may be answered, and who has sent them. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Set as AbstractSet


def allows_host(host_header: str, names: AbstractSet[str] = frozenset()) -> bool:
    """Return whether a request with this `Host` header may be answered: it names `localhost`, an address, or `names`.

    A web page can make its own host name resolve to an address of this machine (DNS rebinding), so that a browser sends
    requests to servers that only this machine can reach. With an address this is impossible. `names` are lower case.
    """
    name = host_header.lower()
    host = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    return host in names or host == "localhost" or _address(host) is not None


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def network_of(host: str) -> str:
    """Return the network by which failed logins are counted.

    That is an IPv4 address, or the /64 network of an IPv6 address, since a client can choose the lower 64 bits. A host
    name is returned unchanged.
    """
    address = _address(host.partition("%")[0])
    if address is None:
        return host
    return str(address if address.version == 4 else ipaddress.ip_network((address, 64), strict=False))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
