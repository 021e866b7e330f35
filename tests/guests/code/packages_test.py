"""Tests of the check of wheels (its path is the argument), and of run_python's files in memory."""

import sys

import a2g_files

# Before other modules, which keep some of the functions that are replaced.
a2g_files.install_roots((a2g_files.ARTIFACTS,), (a2g_files.PACKAGES,))

import base64
import errno
import hashlib
import importlib.metadata
import importlib.resources
import inspect
import io
import json
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import unittest
import unittest.mock
import zipfile

import a2g_artifacts
import a2g_packages

UNPACK = pathlib.Path(sys.argv.pop()).read_text()
WHEEL = "hum-1.0-py3-none-any.whl"
RECORD = "hum-1.0.dist-info/RECORD"


def wheel(files, record=None):
    """A wheel with these files: names, and contents or pairs of a mode and contents."""
    packed = io.BytesIO()
    lines = ""
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            member = zipfile.ZipInfo("x")
            member.filename = name
            if isinstance(content, tuple):
                member.external_attr = content[0] << 16
                content = content[1]
            archive.writestr(member, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            lines += f"{name},sha256={digest},{len(content)}\n"
        archive.writestr(RECORD, f"{lines}{RECORD},,\n" if record is None else record)
    return packed.getvalue()


def unpack(wheels):
    """The exit code, what was printed, the last line of the errors, and the files of the archive."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/wheels")
        for name, content in wheels.items():
            pathlib.Path(folder, "wheels", name).write_bytes(content)
        archive = f"{folder}/archive.zip"
        command = [sys.executable, "-I", "-c", UNPACK, f"{folder}/wheels", archive]
        end = subprocess.run(command, capture_output=True, text=True)
        files = {}
        if end.returncode == 0:
            with zipfile.ZipFile(archive) as packed:
                files = {name: packed.read(name) for name in packed.namelist()}
        return end.returncode, end.stdout, end.stderr.strip().rpartition("\n")[2], files


class Wheels(unittest.TestCase):
    def test_files_get_to_their_places(self):
        files = [
            ("hum/__init__.py", b"X = 1"),
            ("hum-1.0.data/purelib/more.py", b""),
            ("hum-1.0.data/scripts/hum", b"#!"),
        ]
        content = wheel(files)
        code, printed, error, found = unpack({WHEEL: content})
        self.assertEqual((code, error), (0, ""))
        self.assertEqual(set(found), {"hum/__init__.py", "more.py", RECORD})
        digest = hashlib.sha256(content).hexdigest()
        described = {"name": "hum", "version": "1.0", "file": WHEEL, "sha256": digest}
        self.assertEqual(json.loads(printed), [described])

    def test_bad_wheels_are_refused(self):
        large = io.BytesIO()
        with zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("large", bytes(65 << 20))
        damaged = bytearray(wheel([("a.py", b"x" * 1000)]))
        damaged[40] ^= 0xFF
        other_names = {
            "num_py-2.0-cp314-cp314-manylinux_2_17_x86_64.whl": "num-py has compiled code",
            "hum-1.0-py2-none-any.whl": "hum is not for Python 3",
            "requests-1.0-py3-none-any.whl": "requests cannot work: it needs sockets",
            "celery-1.0-py3-none-any.whl": "celery cannot work: it needs threads",
            "hum-1.0.tar.gz": "is not named as a wheel",
            "\x1b[31mhum.whl": r"'\x1b[31mhum.whl' is not named as a wheel",
        }
        cases = [({name: wheel([])}, words) for name, words in other_names.items()]
        other_contents = [
            (b"text", "is no wheel that can be read"),
            (bytes(damaged), "is no wheel that can be read"),
            (large.getvalue(), "more than 64 MiB"),
            (wheel([(f"{number}", b"") for number in range(10001)]), "more than 10000 files"),
            (wheel([("../a.py", b"")]), "no plain relative path"),
            (wheel([("/a.py", b"")]), "no plain relative path"),
            (wheel([("a//b.py", b"")]), "no plain relative path"),
            (wheel([("a\\b.py", b"")]), "no plain relative path"),
            (wheel([("C:a.py", b"")]), "no plain relative path"),
            (wheel([("a\x1b[31m.py", b"")]), r"'a\x1b[31m.py', which is no plain relative path"),
            (wheel([("a\u202e.py", b"")]), r"'a\u202e.py', which is no plain relative path"),
            (wheel([("a" * 256, b"")]), "no plain relative path"),
            (wheel([("link", (stat.S_IFLNK | 0o777, b"/etc/passwd"))]), "a link or a special file"),
            (wheel([("fifo", (stat.S_IFIFO | 0o666, b""))]), "a link or a special file"),
            (wheel([("hum/fast.cpython-314-wasm32-wasi.so", b"")]), "has compiled code"),
            (wheel([("hum-1.0.data/other/a", b"")]), "of a kind that no tool for wheels knows"),
            (wheel([("a.py", b"1")], "a.py,sha256=AAAA,1\n"), "another SHA-256 than its RECORD"),
            (wheel([("a.py", b"1")], "a.py,,\n"), "another SHA-256 than its RECORD"),
            (wheel([("a.py", b"1")], f"{RECORD},,\n"), "another SHA-256 than its RECORD"),
            (wheel([("b-1.dist-info/RECORD", b"")]), "has 2 lists of its files"),
            (wheel([("a", b""), ("a/b", b"")]), "is a file in one package, and a folder in another"),
        ]
        cases += [({WHEEL: content}, words) for content, words in other_contents]
        two = {WHEEL: wheel([("a.py", b"1")]), "zum-1.0-py3-none-any.whl": wheel([("a.py", b"2")])}
        cases.append((two, "has another 'a.py' than a package before it"))
        for wheels, words in cases:
            code, printed, error, _ = unpack(wheels)
            with self.subTest(words=words, error=error):
                self.assertEqual((code, printed), (1, ""))
                self.assertIn(words, error)
                self.assertTrue(error.isprintable())


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        a2g_packages.add("/packages/hum/__init__.py", b"from . import part\nTOTAL = part.PART + 1\n")
        a2g_packages.add("/packages/hum/part.py", b"PART = 41\n")
        a2g_packages.add("/packages/hum/template.py", b"{{ name }} = = 1\n")
        a2g_packages.add("/packages/hum/words.txt", b"one\ntwo\n")
        a2g_packages.add("/packages/hum-1.0.dist-info/METADATA", b"Metadata-Version: 2.1\nName: hum\nVersion: 1.0\n")
        sys.path.append(a2g_files.PACKAGES)

    def test_packages_are_imported_with_their_data(self):
        import hum

        self.assertEqual((hum.TOTAL, hum.__file__), (42, "/packages/hum/__init__.py"))
        self.assertEqual(importlib.metadata.version("hum"), "1.0")
        self.assertEqual(importlib.resources.files("hum").joinpath("words.txt").read_text(), "one\ntwo\n")
        self.assertEqual(inspect.getsource(hum.part), "PART = 41\n")
        compiled = os.listdir("/packages/hum/__pycache__")
        self.assertEqual({name.partition(".")[0] for name in compiled}, {"__init__", "part"})
        with self.assertRaises(SyntaxError):
            import hum.template

    def test_packages_cannot_be_changed(self):
        for change in (
            lambda: open("/packages/hum/part.py", "w"),
            lambda: open("/packages/hum/part.py", "r+b"),
            lambda: open("/packages/new.py", "x"),
            lambda: os.remove("/packages/hum/part.py"),
            lambda: os.mkdir("/packages/new"),
            lambda: os.rename("/packages/hum", "/artifacts/hum"),
            lambda: os.rename("/artifacts", "/packages/hum/a"),
            lambda: os.open("/packages/new.py", os.O_WRONLY | os.O_CREAT),
        ):
            with self.assertRaisesRegex(OSError, "Read-only file system"):
                change()
        self.assertFalse(os.access("/packages/hum/part.py", os.W_OK))

    def test_an_artifact_is_sent_once_until_it_changes(self):
        sent = []
        send = lambda name, kind, chunk, is_last: sent.append((name, kind, len(chunk), is_last))
        pathlib.Path("/artifacts/sub").mkdir()
        pathlib.Path("/artifacts/sub/a.csv").write_text("a,b")
        with open("/artifacts/long", "wb") as file:
            file.write(bytes((1 << 20) + 1))
        self.assertEqual(a2g_artifacts.send(send), ["long", "sub-a.csv"])
        binary = "application/octet-stream"
        chunks = [("long", binary, 1 << 20, False), ("long", binary, 1, True), ("sub-a.csv", "text/csv", 3, True)]
        self.assertEqual(sent, chunks)
        self.assertEqual(a2g_artifacts.send(send), [])
        with open("/artifacts/long", "ab") as file:
            file.write(b"1")
        self.assertEqual(a2g_artifacts.send(send), ["long"])
        shutil.rmtree("/artifacts/sub")
        self.assertEqual(os.listdir("/artifacts"), ["long"])

    def test_files_are_copied_and_moved_out_of_memory(self):
        os.makedirs("/artifacts/out/of")
        pathlib.Path("/artifacts/out/of/a").write_text("1")
        self.addCleanup(shutil.rmtree, "/artifacts/out")
        described = os.stat("/artifacts/out/of/a")
        self.assertEqual(described.st_mtime_ns, described.st_mtime * 10**9)
        self.assertFalse(os.path.samefile("/artifacts/out", "/artifacts/out/of"))
        # Only Linux has these attributes.
        without = unittest.mock.patch.object(shutil, "_copyxattr", lambda *_, **__: None)
        with without, tempfile.TemporaryDirectory() as folder:
            shutil.copy2("/artifacts/out/of/a", f"{folder}/copy")
            shutil.copytree("/artifacts/out", f"{folder}/tree")
            shutil.move("/artifacts/out/of/a", f"{folder}/moved")
            self.assertEqual(sorted(os.listdir(folder)), ["copy", "moved", "tree"])
            self.assertEqual(os.listdir(f"{folder}/tree/of"), ["a"])
        self.assertEqual(os.listdir("/artifacts/out/of"), [])

    def test_a_rename_replaces_only_what_it_may(self):
        os.makedirs("/artifacts/full/inner")
        os.mkdir("/artifacts/empty")
        pathlib.Path("/artifacts/full/a").write_text("1")
        self.addCleanup(shutil.rmtree, "/artifacts/empty")
        for old, new, number in (
            ("full", "full/inner/b", errno.EINVAL),
            ("empty", "full", errno.ENOTEMPTY),
            ("empty", "full/a", errno.ENOTDIR),
            ("full/a", "empty", errno.EISDIR),
        ):
            with self.assertRaises(OSError, msg=f"{old} {new}") as refused:
                os.rename(f"/artifacts/{old}", f"/artifacts/{new}")
            self.assertEqual(refused.exception.errno, number)
        os.rename("/artifacts/full", "/artifacts/full")
        os.rename("/artifacts/full", "/artifacts/empty")
        self.assertEqual((os.listdir("/artifacts/empty"), os.path.exists("/artifacts/full")), (["a", "inner"], False))

    def test_the_working_folder_may_be_in_memory(self):
        self.addCleanup(os.chdir, os.getcwd())
        own = {"roots": ("/tmp", *a2g_files.roots), "writable": a2g_files.WRITABLE}
        with unittest.mock.patch.multiple(a2g_files, **own):
            a2g_files.folders.add("/tmp")
            a2g_files.start([])
            self.assertEqual((os.getcwd(), os.getcwdb()), ("/tmp", b"/tmp"))
            os.mkdir("sub")
            os.chdir("sub")
            pathlib.Path("a.txt").write_text("1")
            self.assertEqual((os.getcwd(), open("/tmp/sub/a.txt").read()), ("/tmp/sub", "1"))
            os.chdir("..")
            self.assertEqual([str(path) for path in pathlib.Path(".").rglob("*")], ["sub", "sub/a.txt"])
            self.assertEqual([entry.path for entry in os.scandir("sub")], ["sub/a.txt"])
            os.rename("sub/a.txt", "b.txt")
            self.assertEqual((os.path.abspath("b.txt"), os.stat("b.txt").st_size), ("/tmp/b.txt", 1))
            with self.assertRaises(NotADirectoryError):
                os.chdir("b.txt")
            with tempfile.TemporaryFile(dir="/tmp") as file:
                file.write(b"x")
            self.assertEqual(os.listdir(), ["b.txt", "sub"])
            a2g_files.start(["/usr", "/var"])
            self.assertEqual((os.getcwd(), os.path.exists("share")), ("/usr", True))
            os.chdir("/tmp")
            self.assertTrue(os.path.isdir("../usr/share"))
            # A granted folder has precedence.
            a2g_files.start(["/usr", "/tmp/granted"])
            self.assertEqual((a2g_files.place("/tmp/b.txt"), os.getcwd()), (None, "/usr"))

    def test_granted_folders_are_in_front_of_those_in_memory(self):
        self.addCleanup(os.chdir, os.getcwd())
        self.addCleanup(a2g_files.start, ["/usr"])
        a2g_files.start(["/packages/data", "/artifacts/"])
        for path, is_in_memory in [
            ("/packages/data/f", False),
            ("/packages/data", False),
            ("/packages/../artifacts/f", False),
            ("/packages/hum/part.py", True),
            ("/packages/database", True),
        ]:
            self.assertEqual(a2g_files.place(path) is not None, is_in_memory, path)

    def test_other_paths_are_those_of_the_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "artifacts")
            path.mkdir()
            (path / "x").write_text("1")
            self.assertEqual([entry.name for entry in os.scandir(path)], ["x"])
        self.assertFalse(os.path.exists("/artifacts-of-others"))
        self.assertEqual(os.listdir(None), os.listdir("."))
        with self.assertRaisesRegex(TypeError, "listdir: path should be"):
            os.listdir([])


if __name__ == "__main__":
    unittest.main()
