"""Who made a model: an Ed25519 signature of a run folder, kept in it as `signature.json`.

Checksums show that a folder is whole, not whose it is: whoever changes a file can change its checksum. A signature is
made with a private key, and checked with the public one, which is all that a server needs to have. It covers the name,
size and SHA-256 of every file of the folder, so that nothing can be changed, added or taken away.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from puidrec.atomic import locked, write_json
from puidrec.errors import InputError
from puidrec.store import read_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE, FORMAT = "signature.json", "puidrec-signature-1"
MAX_KEY_FILE = 2**16
CHUNK = 2**20


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    size: int
    sha256: str


class _Signature(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    format: str
    files: dict[str, _File]
    public_key: str
    signature: str


@dataclass(frozen=True)
class Signed:
    """What a signature says: who signed (a fingerprint of the public key), and how many files."""

    signer: str
    files: int


def sign(folder: Path, private_key: Path) -> Signed:
    """Sign a run folder; an earlier signature is replaced."""
    key = _private(private_key)
    with locked(folder):
        files = _files(folder)
        content = {
            "format": FORMAT,
            "files": files,
            "public_key": _text(key.public_key().public_bytes_raw()),
            "signature": _text(key.sign(_message(files))),
        }
        write_json(folder / SIGNATURE, content)
    return Signed(fingerprint(key.public_key()), len(files))


def verify(folder: Path, public_keys: Sequence[Path]) -> Signed:
    """Check that one of the keys signed the folder as it is now; anything else is refused, with what was found."""
    from cryptography.exceptions import InvalidSignature

    known = {_text(key.public_bytes_raw()): key for key in (_public(path) for path in public_keys)}
    path = folder / SIGNATURE
    if not path.exists():
        raise InputError("the folder is not signed", file=folder, hint="Sign it: puid sign RUN --key FILE.")
    found = _read(path)
    files = {name: entry.model_dump() for name, entry in found.files.items()}
    key = known.get(found.public_key)
    if key is None:
        raise InputError("signed by a key that is not trusted here", file=path, found=found.public_key)
    try:
        key.verify(_bytes(found.signature, path), _message(files))
    except InvalidSignature:
        raise InputError("the signature is not of this key", file=path, hint="Do not use this model.") from None
    _compare(folder, files, _files(folder))
    return Signed(fingerprint(key), len(files))


def make_keys(private_key: Path) -> Path:
    """Write a new pair of keys: FILE, which only its owner may read, and FILE.pub. Files that exist stay."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, public = Ed25519PrivateKey.generate(), private_key.with_name(f"{private_key.name}.pub")
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    shown = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    for path, content, mode in ((public, shown, 0o644), (private_key, secret, 0o600)):
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
                stream.write(content)
        except FileExistsError:
            raise InputError("there is a key already", file=path, hint="Name a new file.") from None
        except OSError as error:
            raise InputError("cannot write", file=path, found=error.strerror) from error
    return public


def fingerprint(key: Ed25519PublicKey) -> str:
    """A short name of a public key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _message(files: dict[str, dict[str, Any]]) -> bytes:
    """What is signed: the same bytes for the same files, and nothing that was signed for another purpose."""
    return f"{FORMAT}\n{json.dumps(files, sort_keys=True, ensure_ascii=True)}".encode()


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and digest of every file, by its path in the folder; links and devices could be something else next time."""
    if not folder.is_dir():
        raise InputError("not a folder", file=folder, expected="a folder written by puid train")
    found = {}
    for path in sorted(folder.rglob("*")):
        name, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
        if stat.S_ISDIR(mode) or name == SIGNATURE:
            continue
        if not stat.S_ISREG(mode):
            raise InputError("only plain files can be signed", file=path)
        try:
            found[name] = _digest(path)
        except OSError as error:
            raise InputError("cannot read", file=path, found=error.strerror) from error
    if not found:
        raise InputError("there is nothing to sign", file=folder)
    return found


def _digest(path: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


def _compare(folder: Path, signed: dict[str, Any], found: dict[str, Any]) -> None:
    for name in sorted({*signed, *found}):
        if signed.get(name) != found.get(name):
            how = "was changed" if name in signed and name in found else "is missing" if name in signed else "was added"
            raise InputError(
                f"a file {how} after the folder was signed", file=folder, found=name, hint="Do not use this model."
            )


def _read(path: Path) -> _Signature:
    try:
        found = _Signature.model_validate(read_json(path))
    except ValidationError as error:
        raise InputError("not a signature", file=path, found=str(error.errors()[0]["msg"])) from error
    if found.format != FORMAT:
        raise InputError("unknown format", file=path, found=found.format, expected=FORMAT)
    return found


def _private(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key: Ed25519PrivateKey = _key(path, lambda pem: load_pem_private_key(pem, None), Ed25519PrivateKey, "private")
    return key


def _public(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key: Ed25519PublicKey = _key(path, load_pem_public_key, Ed25519PublicKey, "public")
    return key


def _key(path: Path, load: Any, kind: type[Any], word: str) -> Any:
    """A key from a PEM file; what is in the file is never quoted."""
    from cryptography.exceptions import UnsupportedAlgorithm

    expected = f"a {word} Ed25519 key in PEM form, as puid sign --new-key and openssl genpkey -algorithm ed25519 write"
    try:
        if path.exists() and not path.is_file():
            raise InputError("not a file", file=path, expected=expected)
        with path.open("rb") as stream:
            key = load(stream.read(MAX_KEY_FILE))
    except OSError as error:
        raise InputError("cannot read", file=path, found=error.strerror, expected=expected) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("not a key", file=path, expected=expected) from error
    if not isinstance(key, kind):
        raise InputError("a key of another kind", file=path, found=type(key).__name__.strip("_"), expected=expected)
    return key


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str, path: Path) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("not a signature", file=path) from error
