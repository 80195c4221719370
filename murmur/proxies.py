"""The one rule by which this machine reaches others: the proxy variables of the field, for chain and buckets alike.

`https_proxy` for https and wss, `http_proxy` for http and ws, `all_proxy` for what has none of its own; upper case too.
Hosts of `no_proxy` and this machine itself are reached directly, whatever is set. Standard library only: chain and
storage both import it.
"""

import ipaddress
import os
import urllib.request
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from murmur.protocol.errors import ConfigError

_bypass: Callable[[str, dict[str, str]], bool] = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]
_VARIABLES = {"https": "https", "wss": "https", "http": "http", "ws": "http"}


def is_loopback(host: str) -> bool:
    """Whether a host's name or address, without brackets, is this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def proxy_for(url: str) -> str | None:
    """Return the address of the proxy by which `url` is reached; None: directly. Raises ConfigError for a proxy that
    cannot be used."""
    parts = urlsplit(url)
    host, kind = parts.hostname, _VARIABLES.get(parts.scheme)
    if host is None or kind is None or is_loopback(host):
        return None
    named = urllib.request.getproxies_environment()
    given = named.get(kind) or named.get("all")
    if not given or _bypass(host, named):
        return None
    proxy = given if "://" in given else f"http://{given}"
    try:
        usable = urlsplit(proxy).scheme in ("http", "https") and urlsplit(proxy).hostname and urlsplit(proxy).port != 0
    except ValueError:
        usable = False
    if not usable:
        variable = f"{kind}_proxy" if named.get(kind) else "all_proxy"
        raise ConfigError(
            f"the proxy {without_password(proxy)} of {variable} cannot be used for {host}: give http://HOST:PORT or "
            f"https://HOST:PORT in {kind.upper()}_PROXY, or put {host} into NO_PROXY"
        )
    return proxy


def without_password(proxy: str) -> str:
    """Return a proxy's address for people: without the name and password in it."""
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def way_to(url: str) -> str:
    """Return how `url` is reached, in words that follow another sentence: nothing where it is directly."""
    proxy = proxy_for(url)
    return "" if proxy is None else f", through the proxy {without_password(proxy)}"


def impose(urls: Iterable[str]) -> None:
    """Make libraries that read the variables themselves, by rules of their own, follow ours for these addresses."""
    for url in urls:
        host, scheme, proxy = urlsplit(url).hostname, urlsplit(url).scheme, proxy_for(url)
        if proxy is not None:
            os.environ[f"{scheme}_proxy"] = proxy
        elif host is not None and urllib.request.getproxies_environment():
            spared = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
            if host not in (one.strip() for one in spared.split(",")):
                os.environ["no_proxy"] = f"{spared},{host}".lstrip(",")
