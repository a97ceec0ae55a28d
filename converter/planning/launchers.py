"""Which of several processes this one is, by the variables of whatever started them: `--process auto`."""

from collections.abc import Mapping
from dataclasses import dataclass

from converter.errors import UsageError
from converter.planning.share import Share

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Launcher:
    """Something that starts processes and numbers them.

    Attributes:
      name: for messages.
      index: the variable with the process's number.
      count: the variable with the number of processes; empty where there is none.
      first: the variable with the number of the first process; empty where that is 0.
      step: the variable with the distance of two numbers; empty where that is 1.
      names: whether `count` has the processes' names, with commas between them, instead.
    """

    name: str
    index: str
    count: str = ""
    first: str = ""
    step: str = ""
    names: bool = False

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that say which process this is."""
        return tuple(filter(None, (self.index, self.count)))


LAUNCHERS = (
    # https://slurm.schedmd.com/srun.html, "Output environment variables", and job_array.html
    Launcher("SLURM tasks", "SLURM_PROCID", "SLURM_NTASKS"),
    Launcher(
        "SLURM array", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP"
    ),
    # https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode: the number is not in a variable.
    Launcher("Kubernetes Indexed Job", "JOB_COMPLETION_INDEX"),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    # What the metadata of a TPU pod's hosts and GKE's device plugin set, for libtpu.
    Launcher("TPU pod", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", names=True),
)


def read_share(text: str, variables: Mapping[str, str]) -> Share:
    """The share that `--process` names.

    Args:
      text: `I/N`; `auto`; or `auto/N`, where the launcher does not say how many processes there are.
      variables: the environment.

    Raises:
      UsageError: it is none of these; or no launcher, or several that contradict each other, say which process this is.
    """
    kind, _, number = text.partition("/")
    if kind != AUTO:
        return Share.parse(text)
    if text != AUTO and not (number.isascii() and number.isdigit() and len(number) < 10):
        raise UsageError(f"--process {text}: expected auto, or auto/N with the number of processes, such as auto/8")
    wanted = int(number) if number else None
    present = [launcher for launcher in LAUNCHERS if launcher.index in variables]
    if not present:
        looked = "; ".join(f"{', '.join(one.variables)} ({one.name})" for one in LAUNCHERS)
        raise UsageError(f"--process {text}: no launcher says which process this is; looked for {looked}; give I/N")
    found = {one: _read(one, variables, count) for one in present if (count := _count(one, variables) or wanted)}
    if not found:
        shown = "; ".join(_shown(launcher, variables) for launcher in present)
        raise UsageError(
            f"--process {text}: {shown}, but no variable says how many processes there are: give auto/N, such as auto/8"
        )
    # A task of an array is also the only task of its job, and each of MPI's may be one of SLURM's.
    several = {launcher: share for launcher, share in found.items() if share.count > 1} or found
    said = "; ".join(f"{_shown(launcher, variables)} say {share}" for launcher, share in several.items())
    if len(set(several.values())) > 1:
        raise UsageError(f"--process {text}: launchers contradict each other: {said}; give I/N")
    share = next(iter(several.values()))
    if wanted not in (None, share.count):
        raise UsageError(f"--process {text}: {said}; give I/N")
    return share


def _read(launcher: Launcher, variables: Mapping[str, str], count: int) -> Share:
    """The share that a launcher's variables say."""
    index = _number(launcher.index, variables)
    first = _number(launcher.first, variables) if launcher.first in variables else 0
    step = max(_number(launcher.step, variables), 1) if launcher.step in variables else 1
    place, rest = divmod(index - first, step)
    if rest or not 0 <= place < count:
        every = f" in steps of {step}" if step > 1 else ""
        raise UsageError(
            f"--process auto: {_shown(launcher, variables)}: {index} is not one of {count} numbers from {first} on"
            f"{every}; give I/N"
        )
    return Share.checked(place, count)


def _count(launcher: Launcher, variables: Mapping[str, str]) -> int | None:
    """How many processes a launcher's variables say there are; None where they do not."""
    if not launcher.count or not variables.get(launcher.count, "").strip():
        return None
    if launcher.names:
        return len([name for name in variables[launcher.count].split(",") if name.strip()])
    return _number(launcher.count, variables)


def _number(name: str, variables: Mapping[str, str]) -> int:
    text = variables[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"--process auto: {name}={text!r}: expected a number")
    return int(text)


def _shown(launcher: Launcher, variables: Mapping[str, str]) -> str:
    """The variables of a launcher with their values."""
    return ", ".join(f"{name}={variables[name]}" for name in launcher.variables if name in variables)
