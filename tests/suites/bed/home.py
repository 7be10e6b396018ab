"""Where what suites need lies, and how it comes there: outside of the repository, by package managers only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parents[3]


class Unable(Exception):
    """What is needed cannot be had here; the text says what."""


def _home() -> Path:
    if given := os.environ.get("MADRIGAL_SUITES"):
        return Path(given).resolve()
    shared = Path("/opt/suites")
    return shared if os.access(shared if shared.exists() else shared.parent, os.W_OK) else ROOT / "target" / "suites"


HOME = _home()


def run(*words: str | Path, folder: Path | None = None, seconds: float = 1800, environment: dict[str, str] | None = None) -> str:
    """Runs a command of a setup; what it says is shown only when it fails."""
    try:
        done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True, errors="replace", timeout=seconds,
                              stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    except FileNotFoundError:
        raise Unable(f"needs {words[0]}") from None
    except subprocess.TimeoutExpired:
        raise Unable(f"{words[0]} did not end in {seconds:.0f} s") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "?").splitlines()
        telling = next((line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)), lines[-1])
        raise Unable(f"{Path(words[0]).name} {' '.join(map(str, words[1:4]))}: {telling[:200]}")
    return done.stdout


def program(name: str, package: str = "") -> str:
    """The path of a program; its package is installed where there is none."""
    for attempt in (True, False):
        if found := shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
            return found
        if attempt and package:
            packages(package)
    raise Unable(f"needs {name}" + (f" (package {package})" if package else ""))


def packages(*names: str) -> None:
    """Installs Debian packages that are not there, as the rest of the repository does."""
    if all(_version(name) for name in names):
        return
    done = subprocess.run([str(ROOT / "tools" / "setup"), *names], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if missing := [name for name in names if not _version(name)]:
        last = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise Unable(f"needs the packages {' '.join(missing)}: {last[:200]}")


def once(folder: Path, name: str, make: Callable[[], None]) -> None:
    """Does something that need not be done again; a file says that it is done. What broke half-way is done anew."""
    mark = folder / f".{name}.done"
    if not mark.exists():
        folder.mkdir(parents=True, exist_ok=True)
        make()
        mark.touch()


def source(package: str, like: str = "", only: tuple[str, ...] = ()) -> Path:
    """A Debian source package as its authors released it, unpacked; of the version of the installed package `like`, else the newest one
    that can be had. `only` are patterns of the names that are wanted."""
    folder = HOME / "src" / package

    def get() -> None:
        archive = _download(package, _version(like) if like else "")
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        wanted = ["--wildcards", *(f"*/{pattern}" for pattern in only)] if only else []
        run("tar", "-xf", archive, "-C", folder, "--strip-components", "1", "--no-same-owner", *wanted)

    once(HOME / "src", package, get)
    return folder


def crate(name: str, version: str) -> Path:
    """The source of a crate, by cargo, in a folder that may be written."""
    folder = HOME / "crates" / f"{name}-{version}"

    def get() -> None:
        cargo = program("cargo")
        probe = HOME / "crates" / f"fetch-{name}"
        (probe / "src").mkdir(parents=True, exist_ok=True)
        (probe / "src" / "lib.rs").touch()
        (probe / "Cargo.toml").write_text(f'[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n'
                                          f'[dependencies]\n{name} = "={version}"\n')
        run(cargo, "vendor", "--quiet", "vendor", folder=probe)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(probe / "vendor" / name, folder)
        (folder / ".cargo-checksum.json").unlink(missing_ok=True)
        shutil.rmtree(probe)

    once(HOME / "crates", f"{name}-{version}", get)
    return folder


def _version(package: str) -> str:
    """Of an installed package; empty when it is not installed."""
    try:
        words = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${source:Version}", package]
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    state, _, version = done.stdout.partition(" ")
    return version if state == "installed" else ""


def _download(package: str, wanted: str) -> Path:
    """The archive of a source package. Not every version that lists name is still on the servers, so others are tried."""
    archives = HOME / "archives"
    apt = _apt()
    told = run("apt-cache", *apt, "showsrc", package)
    versions = re.findall(r"^Version: (\S+)$", told, re.MULTILINE)
    why = "no such source package"
    for version in sorted(set(versions), key=lambda version: (version != wanted, versions.index(version))):
        folder = archives / f"{package}_{version}".replace(":", "%")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            run("apt-get", *apt, "source", "--download-only", f"{package}={version}", folder=folder)
        except Unable as unable:
            why = str(unable)
        if found := sorted(folder.glob("*.orig.tar.[gbx]z*")):
            return found[0]
    raise Unable(f"no source of {package}: {why}")


def _apt() -> list[str]:
    """Options that let apt see source packages, without a change to the machine's own lists."""
    folder = HOME / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    options = [f"-oDir::Etc::SourceList={folder}/sources.list", f"-oDir::Etc::SourceParts={folder}/sources.d",
               f"-oDir::State::Lists={folder}/lists", f"-oDir::Cache={folder}/cache"]

    def make() -> None:
        program("apt-get")
        parts = folder / "sources.d"
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir()
        system = Path("/etc/apt")
        (folder / "sources.list").write_text(_one_line(system / "sources.list"))
        for path in sorted((system / "sources.list.d").glob("*.list")):
            (parts / path.name).write_text(_one_line(path))
        for path in sorted((system / "sources.list.d").glob("*.sources")):
            stanzas = re.split(r"\n\s*\n", path.read_text())
            ours = [re.sub(r"^Types:.*$", "Types: deb-src", stanza, flags=re.MULTILINE) for stanza in stanzas if _official(stanza)]
            (parts / path.name).write_text("\n\n".join(ours) + "\n")
        run("apt-get", *options, "update")

    once(folder, "lists", make)
    return options


def _one_line(path: Path) -> str:
    text = path.read_text() if path.exists() else ""
    return "".join(re.sub(r"^deb\s", "deb-src ", line) + "\n" for line in text.splitlines() if _official(line))


def _official(text: str) -> bool:
    return bool(re.search(r"//[^/\s]*(debian|ubuntu)\.(org|com)/", text))
