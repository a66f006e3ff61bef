"""From nothing to the tutorial's last line, as a newcomer: build, install the wheel alone, copy the
commands.

Builds an sdist and a wheel into dist/, with a bill of materials beside them (CycloneDX), installs
the wheel into a new environment in a temporary folder, and runs there, with nothing of the
repository in reach: every `--help`, the demo, the Python block of the README, the tutorial (its
quotes are checked), export and serve, before and after their extras are installed. With `--data
DIR` (a folder that holds `coat`), the commands of the README run too, save `reproduce`, which takes
an hour or more. Takes about six minutes of one core. What was asked of pip by its settings or
environment applies here as well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    "demo",
    "gamma",
    "train",
    "evaluate",
    "recommend",
    "audit",
    "compare",
    "tune",
    "reproduce",
    "serve",
    "export",
    "data describe",
    "data convert",
    "data simulate",
)
NOT_FROM_README = ("puid demo", "puid serve", "puid reproduce")
"""Two are tried apart (a server never ends by itself); the last takes an hour or more."""
REPORT = "installed.json"
OWN_SETTINGS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PUIDREC_DATA")


def main() -> None:
    """Run all of it; the first thing that does not work ends it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds the data set coat")
    chosen = parser.parse_args()
    wheel = build(ROOT / "dist")
    with tempfile.TemporaryDirectory(prefix="puid-wheel-") as folder:
        newcomer = Newcomer(Path(folder))
        newcomer.install(str(wheel), report=True)
        report = json.loads((newcomer.work / REPORT).read_text(encoding="utf-8"))
        bill = wheel.with_name("-".join(wheel.name.split("-")[:2]) + ".cdx.json")
        bill.write_text(json.dumps(bill_of_materials(report), indent=2) + "\n", encoding="utf-8")
        say(f"          {bill.relative_to(ROOT)}: {len(report['install'])} packages")
        newcomer.first_steps()
        newcomer.tutorial()
        newcomer.extras()
        if chosen.data is not None:
            newcomer.readme(chosen.data)
    say(f"{wheel.relative_to(ROOT)}: all of it works")


def build(out: Path) -> Path:
    """The sdist, and the wheel from it, with the build backend that is installed."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = out.glob("*.whl")
    return wheel


def bill_of_materials(report: dict[str, Any]) -> dict[str, Any]:
    """What pip installed with the wheel (`pip install --report`), in CycloneDX 1.5."""
    parts = [_component(one) for one in report["install"]]
    (own,) = (part for part in parts if part["name"] == "puidrec")
    names = {part["name"]: part["bom-ref"] for part in parts}
    needs = []
    for one in report["install"]:
        asked = one["metadata"].get("requires_dist", ())
        wanted = {
            _plain(re.split(r"[^A-Za-z0-9._-]", need, maxsplit=1)[0])
            for need in asked
            if "extra ==" not in need
        }
        ref = names[_plain(one["metadata"]["name"])]
        needs.append(
            {"ref": ref, "dependsOn": sorted(names[name] for name in wanted & names.keys())}
        )
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": sorted(
            (part for part in parts if part is not own), key=lambda part: str(part["name"])
        ),
        "dependencies": sorted(needs, key=lambda need: str(need["ref"])),
    }


def _component(installed: dict[str, Any]) -> dict[str, Any]:
    """One package; the hash is that of the file that was installed."""
    about = installed["metadata"]
    name, version = _plain(about["name"]), about["version"]
    purl = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
    part = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    found = (
        installed.get("download_info", {}).get("archive_info", {}).get("hashes", {}).get("sha256")
    )
    if found:
        part["hashes"] = [{"alg": "SHA-256", "content": found}]
    licence = about.get("license_expression") or about.get("license") or ""
    if licence and len(licence) < 80:  # some put the whole text there
        part["licenses"] = [{"license": {"name": licence}}]
    return part


def _plain(name: str) -> str:
    """The form of a name that an index knows (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Newcomer:
    """An empty environment and an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.work = folder / "env" / "bin", folder / "work"
        self.work.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(self.bin.parent)], check=True)
        clean = {key: value for key, value in os.environ.items() if key not in OWN_SETTINGS}
        self.env = {**clean, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def run(self, command: str, fails: bool = False) -> str:
        """Run a line in the folder, as it is written; returns what it prints."""
        started = time.perf_counter()
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.work,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        if bool(done.returncode) is not fails:
            sys.exit(f"exit code {done.returncode}: {command}\n{done.stdout}\n{done.stderr}")
        say(f"{time.perf_counter() - started:6.1f} s  {command.splitlines()[0]}")
        return done.stdout + done.stderr

    def install(self, what: str, report: bool = False) -> None:
        """What the README says, with the versions the tests run with; report: pip writes down what
        it installed."""
        more = f" --report {REPORT}" if report else ""
        self.run(f"pip install --quiet -c '{ROOT / 'constraints.txt'}'{more} '{what}'")

    def first_steps(self) -> None:
        """Help for every command, the package by its name, the demo, and the README in Python."""
        self.run("puid --version && puid --help")
        for command in COMMANDS:
            self.run(f"puid {command} --help")
        where = self.run("python -c 'import puidrec; print(puidrec.__file__)'")
        assert str(self.bin.parent) in where, where
        self.run("puid demo")
        assert (self.work / "puid-demo" / "report.html").stat().st_size > 100_000
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
        assert block is not None
        (self.work / "readme.py").write_text(block[1], encoding="utf-8")
        self.run("python readme.py")

    def tutorial(self) -> None:
        """Its commands copied one after another, what they print held against what it quotes."""
        self.run(f"python '{ROOT / 'docs' / 'pages.py'}' --check '{ROOT / 'docs' / 'tutorial.md'}'")

    def extras(self) -> None:
        """Serve and export: one line that says what is missing, then the extra, then they work."""
        self.run("puid train --method signed-rd --set epochs=20 --out runs/signed")
        for extra, command in (
            ("serve", "puid serve runs/signed"),
            ("onnx", "puid export runs/signed --format onnx --out graph"),
        ):
            refusal = self.run(command, fails=True)
            assert f"puidrec[{extra}]" in refusal, refusal
            assert refusal.count("\n") == 1, refusal
            self.install(f"puidrec[{extra}]")
        for form in ("onnx", "parquet", "npy"):
            self.run(f"puid export runs/signed --format {form} --out exported-{form}")
        self.served()

    def served(self) -> None:
        """A server on a free port answers and ends when it is told to."""
        command = [str(self.bin / "puid"), "serve", "runs/signed", "--port", "0"]
        with subprocess.Popen(
            command, cwd=self.work, env=self.env, stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                address = next(
                    found[0]
                    for line in server.stdout
                    if (found := re.search(r"http://[\d.:]+", line))
                )
                with urllib.request.urlopen(f"{address}/health", timeout=30) as answer:
                    assert answer.status == 200
                request = urllib.request.Request(
                    f"{address}/recommend",
                    json.dumps({"users": [0], "k": 3}).encode(),
                    {"Content-Type": "application/json"},
                )
                with urllib.request.urlopen(request, timeout=30) as answer:
                    assert len(json.load(answer)["recommendations"][0]["items"]) == 3
            finally:
                server.terminate()
        say("          puid serve answers")

    def readme(self, data: Path) -> None:
        """The README's commands, in order, in a folder where `coat` is."""
        shutil.rmtree(self.work / "runs")
        (self.work / "coat").symlink_to((data / "coat").resolve())
        for line in re.findall(
            r"^puid .+$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
        ):
            if not line.startswith(NOT_FROM_README):
                self.run(line)


def say(line: str) -> None:
    """To whoever waits."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
