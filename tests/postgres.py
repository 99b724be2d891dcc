"""A real PostgreSQL for tests: ``postgres`` is a fixture."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


class Postgres:
    """A PostgreSQL in a folder of its own; it refuses to run as root."""

    BINARIES = "/usr/lib/postgresql/15/bin"

    def __init__(self, folder):
        self.folder, self.url = folder, f"postgresql://tester@/postgres?host={folder}"
        self.user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        folder.mkdir()
        if self.user:
            shutil.chown(folder, "postgres", "postgres")
        self._call("initdb", "-A", "trust", "-N", "-U", "tester")
        self.start()

    def _call(self, name, *words):
        command = [*self.user, f"{self.BINARIES}/{name}", "-D", f"{self.folder}/data", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start(self):
        self._call("pg_ctl", "-w", "-l", f"{self.folder}/log", "-o", f"-k {self.folder} -h '' -F", "start")

    def stop(self):
        self._call("pg_ctl", "-w", "-m", "immediate", "stop")


@pytest.fixture(scope="session")
def postgres():
    """Run a PostgreSQL for the tests of a file, or skip."""
    if not os.path.exists(f"{Postgres.BINARIES}/initdb"):
        pytest.skip("no PostgreSQL 15 here (apt-get install postgresql)")
    if os.getuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("PostgreSQL does not run as root, and there is no setpriv")
    folder = tempfile.mkdtemp(prefix="pg", dir="/tmp")  # a socket's path is short, and others must reach it
    os.chmod(folder, 0o755)
    server = Postgres(Path(folder) / "p")
    yield server
    server.stop()
    shutil.rmtree(folder)
