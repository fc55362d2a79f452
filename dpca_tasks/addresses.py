"""Network addresses of this machine."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine alone; no name but ``localhost`` is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
