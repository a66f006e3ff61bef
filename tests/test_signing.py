"""Signatures of run folders: any change is found and named, and no other key will do."""

from __future__ import annotations

import base64
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from puidrec.signing import SIGNATURE, make_keys, sign, verify


@pytest.fixture
def signed(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A signed folder, the private key and the public one."""
    run, key = tmp_path / "run", tmp_path / "a.pem"
    (run / "model").mkdir(parents=True)
    (run / "model" / "numbers").write_bytes(bytes(range(256)) * 9000)  # more than is read at once
    (run / "metrics.json").write_text("{}")
    public = make_keys(key)
    assert sign(run, key).files == 2
    return run, key, public


def test_what_was_signed_is_verified_by_its_key_alone(signed: Any, tmp_path: Path, refusal: Any) -> None:
    run, key, public = signed
    assert verify(run, [public]) == sign(run, key)
    other = make_keys(tmp_path / "b.pem")
    refusal(lambda: verify(run, [other]), "not trusted here")
    assert verify(run, [other, public]).files == 2
    refusal(lambda: verify(run, [key]), "not a key")
    refusal(lambda: sign(run, public), "not a key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    refusal(lambda: make_keys(key), "there is a key already")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda run: (run / "metrics.json").write_text("[]"), "was changed"),
        (lambda run: (run / "model" / "numbers").unlink(), "is missing"),
        (lambda run: (run / "model" / ".more").write_text(""), "was added"),
        (lambda run: (run / "metrics.json").rename(run / "metrics2.json"), "is missing"),
        (lambda run: (run / "model" / "link").symlink_to("numbers"), "plain files"),
    ],
)
def test_every_change_is_found(signed: Any, refusal: Any, change: Any, word: str) -> None:
    run, _, public = signed
    change(run)
    refusal(lambda: verify(run, [public]), word)


def test_a_signature_that_was_made_up_is_refused(signed: Any, refusal: Any) -> None:
    """A file of digests that fits a changed folder, under the signature of the folder before it."""
    run, key, public = signed
    genuine = json.loads((run / SIGNATURE).read_text())
    (run / "metrics.json").write_text("[]")
    sign(run, key)
    fitting = json.loads((run / SIGNATURE).read_text())
    for made, words in (
        ({**fitting, "signature": genuine["signature"]}, "not of this key"),
        ({**fitting, "signature": base64.b64encode(bytes(64)).decode()}, "not of this key"),
        ({**fitting, "signature": "?"}, "not a signature"),
        ({**fitting, "files": {}}, "not of this key"),
        ({**fitting, "format": "other"}, "unknown format"),
        ({**fitting, "more": 1}, "not a signature"),
    ):
        (run / SIGNATURE).write_text(json.dumps(made))
        refusal(lambda: verify(run, [public]), words)
    (run / SIGNATURE).unlink()
    refusal(lambda: verify(run, [public]), "not signed")


def test_keys_of_openssl_and_of_other_kinds(signed: Any, tmp_path: Path, refusal: Any) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    run, _, public = signed
    other = generate_private_key(SECP256R1())
    pem = other.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    (tmp_path / "ec.pem").write_bytes(pem)
    refusal(lambda: sign(run, tmp_path / "ec.pem"), "another kind")
    (tmp_path / "bad.pem").write_text("secret words")
    assert "secret words" not in refusal(lambda: sign(run, tmp_path / "bad.pem"), "not a key")
    refusal(lambda: sign(run, tmp_path / "none.pem"), "cannot read")
    assert verify(run, [public]).signer
    if (openssl := shutil.which("openssl")) is not None:
        import subprocess

        own = tmp_path / "own.pem"
        made = subprocess.run(
            [openssl, "genpkey", "-algorithm", "ed25519", "-out", str(own)], capture_output=True, check=False
        )
        if made.returncode == 0:
            assert sign(run, own).files == 2


def test_a_folder_that_another_process_writes_is_not_signed(signed: Any, refusal: Any, lock_holder: Any) -> None:
    run, key, _ = signed
    with lock_holder(run):
        refusal(lambda: sign(run, key), "has been writing there")
