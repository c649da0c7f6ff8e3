"""A server of PostgreSQL in a folder of its own, from the system's packages; it ends with its `with`."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


class Postgres:
    """`with Postgres() as postgres: connect(postgres.user, unix_sock=postgres.socket)`"""

    user = "postgres"

    def __enter__(self):
        found = shutil.which("initdb")
        programs = Path(found).parent if found else max(Path("/usr/lib/postgresql").glob("*/bin"))
        self.folder = tempfile.TemporaryDirectory(prefix="tidings-postgres-")
        # The server refuses to run as root.
        person = pwd.getpwnam("postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name)
        as_person = {"user": person.pw_uid, "group": person.pw_gid} if os.getuid() == 0 else {}
        os.chown(self.folder.name, person.pw_uid, person.pw_gid)
        data, self.socket = f"{self.folder.name}/data", f"{self.folder.name}/.s.PGSQL.5432"
        quiet = {"stdout": subprocess.DEVNULL, "check": True, "cwd": self.folder.name, **as_person}
        subprocess.run([programs / "initdb", "-D", data, "-U", self.user, "-A", "trust", "--no-sync"], **quiet)
        settings = f"-c listen_addresses= -c unix_socket_directories={self.folder.name} -c fsync=off"
        self.stop = [programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], quiet
        subprocess.run([programs / "pg_ctl", "-D", data, "-o", settings, "-l", f"{self.folder.name}/log", "-w", "start"], **quiet)
        return self

    def __exit__(self, *_):
        command, quiet = self.stop
        subprocess.run(command, **quiet)
        self.folder.cleanup()
