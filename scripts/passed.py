"""Which sources a check must read: it remembers those that passed, and knows those that changed lately.

An entry is a file. Its name is a hash of what was checked, and how; it lists all files that the check read with their
hashes. A source has passed as long as its entry is there and these files have not changed. As with a compiler's cache,
a new file that an #include would find before one of these is not noticed.
"""
import hashlib
import json
import os
import re
import subprocess
import time

KEPT_DAYS = 60


def files_of(rule):
    """The files in a compiler's rule for make (-M, -MD)."""
    text = rule.partition(": ")[2].replace("\\\n", " ")
    return [name.replace("\\ ", " ") for name in re.findall(r"(?:\\ |\S)+", text)]


def changed_lately():
    """The files that the last 10 commits changed, as far as the clone has them."""
    log = subprocess.run(["git", "log", "-10", "--format=", "--name-only"], stdout=subprocess.PIPE, text=True, check=True)
    return set(log.stdout.split())


class Passed:
    """Entries in `folder`, of checks that `how` describes (strings: the tool's version, its settings)."""

    def __init__(self, folder, *how):
        self.folder, self.how, self.root = folder, how, os.getcwd()
        self.hashes = {}
        os.makedirs(folder, exist_ok=True)
        for entry in os.scandir(folder):
            if entry.stat().st_mtime < time.time() - KEPT_DAYS * 86400:
                os.unlink(entry.path)

    def _hash(self, path):
        """Of a file's bytes; None if it cannot be read."""
        path = os.path.join(self.root, path)
        if path not in self.hashes:
            try:
                with open(path, "rb") as file:
                    self.hashes[path] = hashlib.sha256(file.read()).hexdigest()
            except OSError:
                self.hashes[path] = None
        return self.hashes[path]

    def _entry(self, what):
        """The path of this checkout does not count."""
        text = json.dumps([*self.how, *what]).replace(self.root, ".")
        return os.path.join(self.folder, hashlib.sha256(text.encode()).hexdigest())

    def has(self, *what):
        """True also keeps the entry for longer."""
        entry = self._entry(what)
        try:
            with open(entry, encoding="utf-8") as file:
                read = json.load(file)
        except (OSError, ValueError):
            return False
        if not all(self._hash(path) == hashed for path, hashed in read.items()):
            return False
        os.utime(entry)
        return True

    def add(self, files, *what):
        """`files`: all that the check read, with paths from the root or absolute ones."""
        read = {}
        for path in map(os.path.normpath, files):
            inside = os.path.relpath(path, self.root)
            path = path if inside.startswith("..") else inside
            read[path] = self._hash(path)
        if not read or None in read.values():
            return
        entry = self._entry(what)
        with open(f"{entry}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(read, file)
        os.replace(file.name, entry)
