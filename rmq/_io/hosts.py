"""Hosts as web servers are named and reached. Pure.

A web page can lead its own host name to an address of this machine (DNS rebinding), and so have a browser ask servers
that only this machine can reach. It cannot do so with an address: hence a request must name `localhost`, an address, or
a name that is known to be ours.
"""

from __future__ import annotations

import ipaddress


def named_host(host_header: str) -> str:
    """Return the host of a `Host` header in small letters, without its port and without the brackets of IPv6."""
    name = host_header.lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")


def is_local_name(host: str) -> bool:
    """Return whether no page elsewhere can lead this name to our address."""
    return host == "localhost" or _address(host) is not None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address, or be reached from it."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def network_of(host: str) -> str:
    """Return an IPv4 address, or the 64 bits of an IPv6 address that its user cannot choose; other hosts unchanged."""
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
