"""One rule of proxies for chain and buckets: the field's variables, and never for this machine itself."""

import pytest
from websockets.proxy import get_proxy
from websockets.uri import parse_uri

from murmur.protocol.errors import ConfigError
from murmur.proxies import impose, proxy_for, way_to

PROXY, OTHER = "http://proxy.test:3128", "http://other.test:8080"
NAMES = ("http", "https", "all", "no", "ws", "wss", "socks")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        # Set first: what the code sets is undone then.
        for one in (f"{name}_proxy", f"{name.upper()}_PROXY"):
            monkeypatch.setenv(one, "")
            monkeypatch.delenv(one)


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({}, "https://store.test", None),
        ({"HTTPS_PROXY": PROXY}, "https://store.test", PROXY),
        ({"HTTPS_PROXY": PROXY}, "wss://chain.test:443", PROXY),
        ({"HTTPS_PROXY": PROXY}, "http://store.test", None),
        ({"HTTPS_PROXY": PROXY}, "ws://chain.test:9944", None),
        ({"http_proxy": PROXY, "https_proxy": OTHER}, "ws://chain.test:9944", PROXY),
        ({"ALL_PROXY": PROXY}, "wss://chain.test", PROXY),
        ({"HTTPS_PROXY": PROXY, "ALL_PROXY": OTHER}, "https://store.test", PROXY),
        ({"HTTPS_PROXY": "proxy.test:3128"}, "https://store.test", PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "other.test, store.test"}, "https://store.test", None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": ".test"}, "wss://chain.test", None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, "https://store.test", None),
    ],
)
def test_chain_and_bucket_take_the_same_way(
    variables: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url) == proxy
    if url.startswith("ws"):  # as the library of the chain's SDK reads the variables
        impose([url])
        assert get_proxy(parse_uri(url)) == proxy


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.9", "[::1]", "0.0.0.0", "store.localhost"])
def test_this_machine_is_reached_directly_whatever_is_set(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "ws_proxy", "socks_proxy"):
        monkeypatch.setenv(name, PROXY)
    monkeypatch.setenv("no_proxy", "other.test")
    for scheme in ("http", "https", "ws", "wss"):
        assert proxy_for(f"{scheme}://{host}:9944") is None
    impose([f"ws://{host}:9944"])
    assert get_proxy(parse_uri(f"ws://{host}:9944")) is None
    assert get_proxy(parse_uri("ws://other.test:9944")) is None


@pytest.mark.parametrize("proxy", ["socks5://proxy.test:1080", "http://", "http://proxy.test:port", "http://a:b@"])
def test_a_proxy_that_cannot_be_used_is_named_with_the_remedy(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(ConfigError, match=r"put store\.test into NO_PROXY"):
        proxy_for("https://store.test")


def test_a_proxys_password_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy.test:3128")
    assert way_to("https://store.test") == ", through the proxy http://proxy.test:3128"
    assert way_to("https://127.0.0.1") == ""
