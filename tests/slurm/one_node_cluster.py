"""A SLURM cluster of one node in a folder of its own, for tests and for trying a batch script.

``python tests/slurm/one_node_cluster.py sbatch --wait train.sh`` starts it, runs the command and takes it down.
It needs Debian's ``slurm-wlm`` and ``munge`` (slurmctld, slurmd, srun, munged) and no rights: key, ports, state and
logs are its own, daemons are started and stopped by process id, and a cluster that is here already is not touched.
Processes are tracked through /proc, so there are no cgroups and no limits of memory. The node has four CPUs, however
many the machine has.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "setpriv")
SECONDS = 60  #: for a daemon to answer, or to end
# Two partitions: a job in the second one takes the place of one in the first, which is put back into the queue. A
# requeued job may start after `cred_expire` seconds (elsewhere 120), and a node that does not answer is given up after
# `SlurmdTimeout` (elsewhere 300).
CONFIG = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
SlurmdTimeout=10
ReturnToService=2
NodeName=localhost NodeAddr=127.0.0.1 NodeHostname={host} CPUs=4
PartitionName=low Nodes=localhost Default=YES PriorityTier=1
PartitionName=high Nodes=localhost PriorityTier=2
"""


def missing() -> list[str]:
    """The programs that a cluster needs and this machine has not."""
    return [program for program in PROGRAMS if _program(program) is None]


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class OneNodeCluster:
    """A cluster that lives as long as the block.

    Args:
        folder: An empty folder for everything it writes; its path is short, because sockets lie in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> OneNodeCluster:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if "slurmctld" in self._daemons and self._daemons["slurmctld"].poll() is None:
            subprocess.run(["scancel", "--user", getpass.getuser()], env=self.environment, capture_output=True)
            _until(lambda: not list(self.processes()), 10)
        for process in self.processes():
            _kill(process)
        for name in reversed(list(self._daemons)):
            self._stop(name)

    def _start(self) -> None:
        folder = self.folder
        key, config = folder / "munge.key", folder / "slurm.conf"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        ports = dict(zip(("controller_port", "node_port"), _free_ports(2), strict=True))
        config.write_text(CONFIG.format(folder=folder, host=socket.gethostname(), user=getpass.getuser(), **ports))
        paths = (f"--{kind}={folder}/munge.{end}" for kind, end in _MUNGE.items())
        self._run("munged", "--foreground", "--force", "--num-threads=2", *paths)
        self._wait((folder / "munge.socket").exists, "munged")
        self._run("slurmctld", "-D", "-c", "-f", str(config))
        self.start_node()

    def start_node(self) -> None:
        """Start slurmd, and wait until jobs can run on the node."""
        # As the only daemon of a machine it would put itself where the system's service is; `-N` gives it its name.
        self._run("slurmd", "-D", "-c", "-N", "localhost", "-f", str(self.folder / "slurm.conf"))
        self._wait(lambda: self._node() in ("IDLE", "MIXED", "ALLOCATED"), "slurmctld and slurmd")

    def lose_node(self) -> None:
        """End slurmd and all that runs on the node at once, as when a machine loses its power."""
        self._daemons["slurmd"].send_signal(signal.SIGSTOP)  # it must not report the end of the others
        for process in self.processes():
            _kill(process)
        self._daemons["slurmd"].kill()
        self._daemons.pop("slurmd").wait()

    def processes(self, name: str = "") -> Iterator[int]:
        """Ids of the processes of the cluster's jobs: slurmstepd and what it has started; those of this name only."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if name in command and self._on_node(path, command):
                    yield int(path.name)
            except OSError:  # it has ended, or is another user's
                continue

    def _on_node(self, path: Path, command: str) -> bool:
        if command.startswith("slurmstepd"):  # its title lies where its variables were
            return os.readlink(path / "fd" / "3") == f"{self.folder}/slurmd.log"
        variables = (path / "environ").read_bytes().split(b"\0")
        conf = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        return conf in variables and any(variable.startswith(b"SLURMD_NODENAME=") for variable in variables)

    def ask(self, *words: str) -> str:
        """Standard output of a SLURM command."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def job(self, number: int | str) -> dict[str, str]:
        """What ``scontrol show job`` says: JobState, Restarts, ExitCode, …"""
        words = self.ask("scontrol", "show", "job", "-o", str(number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def _node(self) -> str:
        try:
            return self.ask("sinfo", "-h", "-N", "-n", "localhost", "-p", "low", "-o", "%T").upper()
        except (RuntimeError, subprocess.TimeoutExpired):
            return ""

    def _run(self, name: str, *words: str) -> None:
        command = ["setpriv", "--pdeathsig", "TERM", _program(name) or name, *words]  # not left behind by a killed test
        with (self.folder / f"{name}.out").open("ab") as file:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=file, stderr=file, process_group=0
            )

    def _wait(self, ready: Callable[[], bool], who: str) -> None:
        if not _until(ready, SECONDS):
            logs = [p.read_text(errors="replace")[-2000:] for p in sorted(self.folder.glob("*.log"))]
            logs += [p.read_text(errors="replace")[-2000:] for p in sorted(self.folder.glob("*.out"))]
            raise RuntimeError(f"{who} did not start in {SECONDS} s:\n" + "\n".join(logs))

    def _stop(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


_MUNGE = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _until(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def main() -> int:
    """Run a command on a cluster."""
    if missing():
        print(f"not here: {', '.join(missing())}; apt-get install slurm-wlm munge", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, OneNodeCluster(Path(folder)) as cluster:
        return subprocess.run(sys.argv[1:] or ["sinfo"], env=cluster.environment).returncode


if __name__ == "__main__":
    sys.exit(main())
