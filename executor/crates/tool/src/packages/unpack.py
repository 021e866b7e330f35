"""Checks the wheels of a folder, and writes their files to one archive: FOLDER ARCHIVE.

Prints a JSON list of the wheels: name, version, file, sha256. The first thing that is wrong is the last line of standard
error. `tool add --package` runs this with the Python of the user, and imports nothing from a wheel.
"""

import base64
import csv
import hashlib
import io
import json
import os
import re
import stat
import sys
import zipfile

MAX_WHEELS = 64
MAX_WHEEL_BYTES = 32 << 20
# All wheels together. Every byte is in the memory with which each run begins.
MAX_FILES = 10000
MAX_BYTES = 64 << 20
MAX_NAME_CHARS = 255
# PEP 427. Only wheels without compiled code have the last two parts.
WHEEL = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.]*)-(?P<version>[A-Za-z0-9_.!+]+)(-[0-9][A-Za-z0-9_.]*)?"
    r"-(?P<python>[A-Za-z0-9_.]+)-(?P<abi>[A-Za-z0-9_.]+)-(?P<platform>[A-Za-z0-9_.]+)\.whl"
)
COMPILED = (".a", ".dll", ".dylib", ".o", ".pyd", ".so", ".wasm")
COMPILED_CODE = "compiled code (an extension in C, Rust or Fortran), which cannot run in the sandbox"
NEEDS_NETWORK = {"aiohttp", "boto3", "botocore", "httpcore", "httpx", "paramiko", "requests", "urllib3", "websockets"}
NO_NETWORK = "it needs sockets, which a program does not have: it can call a tool, such as tools.http_fetch(url=...)"
NEEDS_THREADS = {"apscheduler", "celery", "watchdog"}
NO_THREADS = "it needs threads, which a program does not have"
# Only an installation on a machine uses these: scripts, headers, manual pages.
LEFT_OUT = {"scripts", "headers", "data"}


class Refused(Exception):
    """A wheel that cannot be used. The text says why."""


def main(folder, archive):
    names = sorted(os.listdir(folder))
    if len(names) > MAX_WHEELS:
        raise Refused(f"{len(names)} packages are needed, and a tool can have {MAX_WHEELS}")
    found, files = [], {}
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read(MAX_WHEEL_BYTES + 1)
        if len(data) > MAX_WHEEL_BYTES:
            raise Refused(f"{name!a} has more than {MAX_WHEEL_BYTES >> 20} MiB, the maximum of one package")
        package, version = check_name(name)
        try:
            add(name, data, files)
        except Refused:
            raise
        # The modules for archives and tables have many kinds of errors.
        except Exception as error:
            raise Refused(f"{name!a} is no wheel that can be read: {str(error)!a}") from None
        digest = hashlib.sha256(data).hexdigest()
        found.append({"name": package, "version": version, "file": name, "sha256": digest})
    check_folders(files)
    with zipfile.ZipFile(archive, "w") as packed:
        for name in sorted(files):
            # With a fixed time: the same wheels make the same archive.
            packed.writestr(zipfile.ZipInfo(name), files[name])
    print(json.dumps(found))


def check_name(name):
    """The package and version of a wheel."""
    match = WHEEL.fullmatch(name)
    if not match:
        raise Refused(f"{name!a} is not named as a wheel")
    package = re.sub(r"[-_.]+", "-", match["name"]).lower()
    if (match["abi"], match["platform"]) != ("none", "any"):
        raise Refused(f"{package} has {COMPILED_CODE}: its wheel is {name!a}")
    if not re.search(r"(^|\.)py3[0-9]*(\.|$)", match["python"]):
        raise Refused(f"{package} is not for Python 3: its wheel is {name!a}")
    if package in NEEDS_NETWORK:
        raise Refused(f"{package} cannot work: {NO_NETWORK}")
    if package in NEEDS_THREADS:
        raise Refused(f"{package} cannot work: {NO_THREADS}")
    return package, match["version"]


def add(wheel, data, files):
    """Adds the files of a wheel to `files`, at their places below the folder of the packages."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if len(files) + len(members) > MAX_FILES:
            raise Refused(f"the packages have more than {MAX_FILES} files: {wheel!a} is the one that exceeds it")
        # Before anything is unpacked. An archive cannot have more than it declares: the rest is not read.
        size = sum(map(len, files.values())) + sum(member.file_size for member in members)
        if size > MAX_BYTES:
            raise Refused(f"the packages have more than {MAX_BYTES >> 20} MiB: {wheel!a} is the one that exceeds it")
        contents = {}
        for member in members:
            check_member(wheel, member)
            if not member.is_dir():
                if member.filename in contents:
                    raise Refused(f"{wheel!a} has two files {member.filename!a}")
                contents[member.filename] = archive.read(member)
    check_record(wheel, contents)
    for name, content in contents.items():
        at = place(wheel, name)
        if at is None:
            continue
        if files.setdefault(at, content) != content:
            raise Refused(f"{wheel!a} has another {at!a} than a package before it")


def check_member(wheel, member):
    name = member.filename
    parts = name.rstrip("/").split("/")
    if (
        not name.isprintable()
        or len(name) > MAX_NAME_CHARS
        or "\\" in name
        or ":" in name
        or any(part in ("", ".", "..") for part in parts)
        # The text in front of a null byte, which zipfile drops, would be another name.
        or member.orig_filename != name
    ):
        raise Refused(f"{wheel!a} has a file with the name {name[:MAX_NAME_CHARS]!a}, which is no plain relative path")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise Refused(f"{wheel!a} has {name!a}, which is a link or a special file")
    if member.flag_bits & 1:
        raise Refused(f"{wheel!a} has {name!a}, which is encrypted")
    if name.lower().endswith(COMPILED):
        raise Refused(f"{wheel!a} has {COMPILED_CODE}: {name!a}")


def check_record(wheel, contents):
    """Compares each file with the digest that the wheel itself records."""
    records = [name for name in contents if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
    if len(records) != 1:
        raise Refused(f"{wheel!a} has {len(records)} lists of its files (RECORD), and must have one")
    recorded = {row[0]: row[1] for row in csv.reader(io.StringIO(contents[records[0]].decode())) if len(row) == 3}
    for name, content in contents.items():
        if name in (records[0], f"{records[0]}.jws", f"{records[0]}.p7s"):
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        if recorded.get(name) != f"sha256={digest}":
            raise Refused(f"{wheel!a} has {name!a} with another SHA-256 than its RECORD says: sha256={digest}")


def place(wheel, name):
    """The place of a file below the folder of the packages; `None` if it is not needed there."""
    first, _, rest = name.partition("/")
    if not first.endswith(".data"):
        return name
    kind, _, rest = rest.partition("/")
    if kind in ("purelib", "platlib") and rest:
        return rest
    if kind in LEFT_OUT:
        return None
    raise Refused(f"{wheel!a} has {name!a}, of a kind that no tool for wheels knows")


def check_folders(files):
    for name in files:
        parent = os.path.dirname(name)
        while parent:
            if parent in files:
                raise Refused(f"{parent!a} is a file in one package, and a folder in another")
            parent = os.path.dirname(parent)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Refused as error:
        sys.exit(str(error))
