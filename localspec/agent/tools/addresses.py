"""Where a host is: in the public network, or in one that only this machine can reach."""

from __future__ import annotations

import ipaddress
import socket

from localspec.tools import ToolFailed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # NAT64: the last four bytes are an IPv4 address
METADATA = {ipaddress.ip_address(text) for text in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200")}


def numeric(host: str) -> list[str]:
    """Return the address that a host's name spells, in any notation; empty for a real name.

    The resolver reads decimal, octal and hexadecimal numbers, too. Nothing is sent.
    """
    if host == "localhost" or host.endswith(".localhost"):
        return ["127.0.0.1", "::1"]
    return _resolved(host, socket.AI_NUMERICHOST)


def resolve(host: str) -> list[str]:
    """Return the addresses of a host; raises ToolFailed if it has none."""
    found = numeric(host) or _resolved(host, 0)
    if not found:
        raise ToolFailed(f"The host `{host}` is not known")
    return found


def _resolved(host: str, flags: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def network(address: str) -> str | None:
    """Return the network of an address that is not public, None for a public one."""
    ip = _inner(ipaddress.ip_address(address.partition("%")[0]))
    if ip in METADATA:
        return "the service that tells a cloud machine its credentials"
    if ip.is_loopback or ip.is_unspecified:
        return "this machine itself"
    if ip.is_link_local:
        return "the network of this machine's neighbours"
    if ip.is_private:
        return "a private network"
    return None if ip.is_global and not ip.is_multicast else "a reserved network"


def _inner(ip: Address) -> Address:
    """Return the IPv4 address within an IPv6 address that stands for one."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in TRANSLATED:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    teredo = ip.teredo[1] if ip.teredo else None
    return ip.ipv4_mapped or ip.sixtofour or teredo or ip
