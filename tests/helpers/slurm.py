"""A real SLURM of one node on this machine, for the time of a test: munge, the controller, and the node's daemon."""

import getpass
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.helpers import environments
from tests.helpers.s3 import free_ports

NO_SLURM = (
    "no SLURM was found, or it does not start: `srun` and `sbatch` were NOT tested; install one, as with "
    "`apt-get install slurmctld slurmd slurm-client munge`"
)
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
SECONDS = 120

# The node claims more than this machine has, so that scripts for real machines run as they are.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 NodeHostname=localhost CPUs=16 RealMemory=65536 State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """SLURM in a directory of its own; its daemons end with this process however that ends.

    Attributes:
      directory: where it lives; short, because names of sockets are.
    """

    def __init__(self) -> None:
        """Starts it.

        Raises:
          TimeoutError: it does not start; the message has the ends of the logs.
        """
        self.directory = Path(tempfile.mkdtemp(prefix="slurm-"))
        self._daemons: list[subprocess.Popen[bytes]] = []
        controller, node = free_ports(2)
        root = self.directory
        (root / "slurm.conf").write_text(
            CONFIGURATION.format(user=getpass.getuser(), root=root, controller=controller, node=node)
        )
        (root / "cgroup.conf").write_text("CgroupAutomount=no\n")
        for name in ("state", "spool"):
            (root / name).mkdir()
        key = root / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        try:
            self._start(
                "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={root}/munge",
                f"--pid-file={root}/munged.pid", f"--log-file={root}/munged.log", f"--seed-file={root}/seed",
            )  # fmt: skip
            self._wait((root / "munge").exists)
            self._start("slurmctld", "-D", "-c")
            self._start("slurmd", "-D", "-N", "localhost")
            self._wait(lambda: self.run("sinfo", "--noheader", "--format=%t").stdout.strip() == "idle")
        except BaseException:
            self.close()
            raise

    def run(self, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of SLURM's, with no variable of another SLURM that may have started the tests."""
        return subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, timeout=600, cwd=self.directory,
            env={**self._environment(), **variables},
        )  # fmt: skip

    def submit(self, *options: object, **variables: str) -> list[str]:
        """Submits a batch job and waits for its end (`sbatch --wait` looks every ten seconds); the tasks' exit codes.

        Raises:
          TimeoutError: it does not end.
        """
        submitted = self.run("sbatch", "--parsable", *options, **variables)
        assert submitted.returncode == 0, submitted.stderr
        job = submitted.stdout.strip()
        self._wait(lambda: not self.run("squeue", "--noheader", f"--jobs={job}", "--states=PD,R,CG").stdout.strip())
        shown = self.run("scontrol", "--oneliner", "show", "job", job).stdout
        return sorted(word.partition("=")[2] for word in shown.split() if word.startswith("ExitCode="))

    def close(self) -> None:
        """Ends all jobs and daemons, and removes the directory."""
        if len(self._daemons) == 3:
            self.run("scancel", f"--user={getpass.getuser()}")
            self._wait(lambda: not self.run("squeue", "--noheader").stdout.strip())
        for daemon in reversed(self._daemons):
            daemon.communicate()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))}
        return {**own, "PATH": search_path(), "SLURM_CONF": str(self.directory / "slurm.conf")}

    def _start(self, *command: str) -> None:
        # The shell kills the daemon when its standard input ends, which it does even if this process is killed.
        with (self.directory / f"{command[0]}.out").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    ["sh", "-c", '"$@" </dev/null & cat; kill -9 $!; wait', "sh", *command],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=self._environment(),
                    cwd=self.directory,
                )
            )

    def _wait(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not is_so():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text()[-1000:] for path in sorted(self.directory.glob("*.out")))
                raise TimeoutError(f"SLURM did not start, or did not end its jobs, within {SECONDS} s:\n{logs}")
            time.sleep(0.1)


def search_path() -> str:
    """The path for programs, with the directories of daemons."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """SLURM; its absence fails with CI=true, unless it could not be installed, and is a skip elsewhere."""
    if not all(shutil.which(program, path=search_path()) for program in PROGRAMS):
        _lacks(NO_SLURM)
    try:
        server = Slurm()
    except TimeoutError as error:
        _lacks(f"{NO_SLURM}\n{error}")
    yield server
    server.close()


def _lacks(reason: str) -> NoReturn:
    if environments.in_ci() and not os.environ.get("AX2MT_WITHOUT_SLURM"):
        pytest.fail(reason)
    pytest.skip(reason)
