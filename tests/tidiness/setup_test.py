"""Tests scripts/setup when packages are missing: on copies of it, with the test's own versions of dpkg-query, apt-get and
sudo.

    python3 setup_test.py REPOSITORY
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
NOBODY = 65534
ORDER = "apt-get install -y --no-install-recommends first-package second-package"
TOOLS = ("bash", "env", "sed", "dirname", "nproc", "awk", "mktemp", "rm", "cat", "tail", "grep", "true", "id")
DPKG_QUERY = """#!/bin/sh
case "$*" in *"$HAVE"*) echo installed ;; *) exit 1 ;; esac
"""
# Succeeds at the second attempt, as if the package lists had to be refreshed.
APT_GET = """#!/bin/sh
echo "RAN apt-get $*" >>"$RECORD"
[ "$1" = update ] && : >"$RECORD.lists"
[ -e "$RECORD.lists" ]
"""
SUDO = """#!/bin/sh
echo "RAN sudo" >>"$RECORD"
exec "$@"
"""


class Setup(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-setup-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "scripts").mkdir()
        (self.folder / "bin").mkdir()
        for name in ("setup", "common.sh"):
            shutil.copy(ROOT / "scripts" / name, self.folder / "scripts")
        (self.folder / "scripts/packages.txt").write_text("# needed\nfirst-package\nsecond-package\n")
        (self.folder / "scripts/packages-judges.txt").write_text("judges-package\n")
        for tool in TOOLS:
            (self.folder / "bin" / tool).symlink_to(shutil.which(tool))
        self.put("dpkg-query", DPKG_QUERY)
        self.put("apt-get", APT_GET)
        self.record = self.folder / "record"
        self.record.touch()
        for path in (self.folder, self.record):
            path.chmod(0o777)

    def put(self, name, text):
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def run_setup(self, *arguments, as_root, have="nothing"):
        """The exit code, and one text with its output and the commands that it ran, in order."""
        if as_root and os.geteuid() != 0:
            self.skipTest("not root")
        user = {} if as_root or os.geteuid() != 0 else {"user": NOBODY}
        with open(self.record, "a", encoding="utf-8") as out:
            done = subprocess.run([shutil.which("bash"), self.folder / "scripts/setup", *arguments], stdout=out,
                                  stderr=out, stdin=subprocess.DEVNULL, check=False, cwd=self.folder,
                                  env={"PATH": str(self.folder / "bin"), "RECORD": str(self.record), "HAVE": have,
                                       "TMPDIR": str(self.folder)}, **user)
        return done.returncode, self.record.read_text(encoding="utf-8")

    def test_prints_the_command_before_it_runs_it(self):
        code, text = self.run_setup(as_root=True)
        self.assertEqual(code, 0, text)
        self.assertIn("2 packages are missing", text)
        self.assertLess(text.index("  " + ORDER), text.index("RAN " + ORDER), text)
        self.assertLess(text.index("refreshing the package lists: apt-get update"), text.index("RAN apt-get update"))

    def test_uses_sudo_and_prints_it(self):
        self.put("sudo", SUDO)
        code, text = self.run_setup(as_root=False)
        self.assertEqual(code, 0, text)
        self.assertLess(text.index("sudo " + ORDER), text.index("RAN sudo"), text)

    def test_without_sudo_names_the_command_and_does_nothing(self):
        code, text = self.run_setup(as_root=False)
        self.assertEqual(code, 1, text)
        self.assertIn("2 packages are missing", text)
        self.assertIn(ORDER, text)
        self.assertIn("--no-setup", text)
        self.assertNotIn("RAN", text)

    def test_a_sudo_that_refuses_is_reported(self):
        self.put("sudo", "#!/bin/sh\necho sorry >&2\nexit 1\n")
        code, text = self.run_setup(as_root=False)
        self.assertEqual(code, 1, text)
        self.assertLess(text.index("will be installed now"), text.index("sorry"), text)
        self.assertIn("sudo does not let", text)
        self.assertIn("As root:\n  " + ORDER, text)

    def test_dry_run_only_prints(self):
        code, text = self.run_setup("--dry-run", as_root=False, have="first-package")
        self.assertEqual((code, text), (0, "sudo apt-get install -y --no-install-recommends second-package\n"))

    def test_packages_for_the_judges_only(self):
        code, text = self.run_setup("--judges", "--dry-run", as_root=False)
        self.assertEqual((code, text), (0, "sudo apt-get install -y --no-install-recommends judges-package\n"))
        self.assertNotIn("judges-package", self.run_setup("--dry-run", as_root=False)[1].replace(text, ""))

    def test_is_quiet_when_nothing_is_missing(self):
        self.assertEqual(self.run_setup(as_root=False, have="package"), (0, ""))


if __name__ == "__main__":
    unittest.main()
