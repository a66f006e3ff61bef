"""Keys, names and addresses: who is let in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from puidrec.model import Recommender
from puidrec.serve.limits import (
    ApiKeys,
    Policy,
    allowed_hosts,
    is_loopback,
    require_key_beyond_loopback,
)

KEY = "0123456789abcdef"


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    (tmp_path / "keys").write_text(f"{KEY}\n")
    return ApiKeys(tmp_path / "keys")


def test_keys_are_compared_whole_and_kept_as_digests(keys: ApiKeys) -> None:
    assert keys.knows(KEY)
    for other in ("", KEY[:-1], KEY + "0", KEY.upper(), "\udcff" * 16):
        assert not keys.knows(other)
    assert KEY not in repr(vars(keys))


def test_every_key_is_compared_whichever_is_right(
    keys: ApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the time that an answer takes would tell how far down the list a key is."""
    import hmac

    keys.file.write_text("".join(f"{n:016d}\n" for n in range(5)))
    keys.reload()
    compared: list[bytes] = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(b) is None and a == b)
    assert keys.knows(f"{0:016d}")
    assert len(compared) == 5


def test_keys_change_on_reload_and_stay_where_the_file_is_wrong(
    keys: ApiKeys, refusal: Any
) -> None:
    keys.file.write_text("another-key-of-ours\n")
    keys.reload()
    assert (keys.knows("another-key-of-ours"), keys.knows(KEY)) == (True, False)
    keys.file.write_text("")
    refusal(keys.reload, "no API keys")
    assert keys.knows("another-key-of-ours")


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("no-such-name.invalid", False),
        ("", False),
        ("\0", False),
        ("::ffff:192.0.2.1", False),
    ],
)
def test_loopback(host: str, own: bool, keys: ApiKeys, refusal: Any) -> None:
    assert is_loopback(host) is own
    require_key_beyond_loopback(host, keys)
    if own:
        require_key_beyond_loopback(host, None)
    else:
        refusal(lambda: require_key_beyond_loopback(host, None), "needs an API key")


def test_names(refusal: Any) -> None:
    assert "*" not in allowed_hosts("127.0.0.1", [])
    assert "[::1]" in allowed_hosts("::1", [])
    assert allowed_hosts("192.0.2.1", []) == ["*"]
    assert allowed_hosts("192.0.2.1", ["a.example"]) == ["a.example"]
    for name in ("", "a*", "*a.example"):
        refusal(lambda name=name: allowed_hosts("127.0.0.1", [name]), "not a host name")


def test_a_page_under_another_name_gets_nothing(client_of: Any, model: Recommender) -> None:
    client = client_of(model, policy=Policy(hosts=allowed_hosts("127.0.0.1", [])))
    for name, status in (
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("rebound.example", 400),
    ):
        answer = client.ask("GET", "/model", headers={"host": name})
        assert answer.status_code == status, name
    assert answer.json()["error"]["code"] == "wrong_host"
    assert client.ask("GET", "/livez", headers={"host": "10.1.2.3"}).status_code == 200


def test_keys_come_before_everything_else(
    client_of: Any, model: Recommender, keys: ApiKeys
) -> None:
    client = client_of(model, policy=Policy(keys=keys))
    large = {"users": [1], "padding": "x" * 5 * 2**20}
    client.refused("/recommend", large, 401, "unauthorised")  # not 413: its body was not looked at
    document = client.ask("GET", "/openapi.json", headers={"x-api-key": KEY}).json()
    assert document["security"] == [{"bearer": []}, {"header": []}]
    assert document["paths"]["/livez"]["get"]["security"] == []
    assert (
        "Bearer KEY" in client.ask("GET", "/docs", headers={"authorization": f"bearer {KEY}"}).text
    )


def test_other_origins_are_let_in_only_where_asked(
    client_of: Any, model: Recommender, keys: ApiKeys
) -> None:
    asked = {"origin": "https://shop.example", "access-control-request-method": "POST"}
    closed, opened = (
        client_of(model),
        client_of(model, policy=Policy(keys=keys, origins=["https://shop.example"])),
    )
    assert closed.ask("OPTIONS", "/recommend", headers=asked).status_code == 405
    answer = opened.ask("OPTIONS", "/recommend", headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (
        200,
        "https://shop.example",
    )
    other = opened.ask("OPTIONS", "/recommend", headers={**asked, "origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
