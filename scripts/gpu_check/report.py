"""The report: a JSON file that is complete and up to date after every row, however the run ends."""
import json
import os
import threading


class Report:
    """`path` may be None: then no file is written."""

    def __init__(self, path, head):
        self.path = path
        self.content = {**head, "parts": []}
        self._lock = threading.RLock()
        self.write()

    def set(self, name, value):
        with self._lock:
            self.content[name] = value
            self.write()

    def begin(self, part):
        """Writes a part when it begins, so that the file of a killed run shows the part."""
        with self._lock:
            self.content["parts"].append({"part": part, "verdict": "running", "seconds": 0, "note": "", "rows": []})
            self.write()

    def row(self, row):
        with self._lock:
            self.content["parts"][-1]["rows"].append(row)
            self.write()

    def end(self, verdict, seconds, note):
        with self._lock:
            self.content["parts"][-1].update(verdict=verdict, seconds=round(seconds, 1), note=note)
            self.write()

    def rows(self):
        """The rows of the running part."""
        with self._lock:
            return list(self.content["parts"][-1]["rows"])

    def write(self):
        if self.path is None:
            return
        beside = f"{self.path}.partial"
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(self.content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path)
