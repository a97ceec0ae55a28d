"""`--process auto`: the variables of SLURM, Kubernetes, Open MPI and TPU pods, alone and together."""

import pytest

from converter.errors import UsageError
from converter.planning import Share, read_share
from converter.planning.launchers import LAUNCHERS

SRUN = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}
ARRAY = {
    "SLURM_ARRAY_TASK_ID": "12", "SLURM_ARRAY_TASK_COUNT": "8", "SLURM_ARRAY_TASK_MIN": "10",
    "SLURM_ARRAY_TASK_MAX": "17", "SLURM_ARRAY_TASK_STEP": "1",
}  # fmt: skip
MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t1v-n-0,t1v-n-1"}
JOB = {"JOB_COMPLETION_INDEX": "5"}


@pytest.mark.parametrize(
    ("text", "variables", "share"),
    [
        ("1/3", SRUN, Share(1, 3)),
        ("auto", SRUN, Share(2, 4)),
        ("auto/4", SRUN, Share(2, 4)),
        ("auto", ARRAY, Share(2, 8)),
        ("auto", {**ARRAY, "SLURM_ARRAY_TASK_ID": "14", "SLURM_ARRAY_TASK_STEP": "2"}, Share(2, 8)),
        ("auto", {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "2"}, Share(0, 2)),
        # The batch step of an array's task is a task of SLURM's as well, with or without a number of tasks.
        ("auto", {**ARRAY, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Share(2, 8)),
        ("auto", {**ARRAY, "SLURM_PROCID": "0"}, Share(2, 8)),
        ("auto", MPI, Share(2, 4)),
        ("auto", {**MPI, **SRUN}, Share(2, 4)),
        ("auto", {**MPI, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Share(2, 4)),
        ("auto", TPU, Share(1, 2)),
        ("auto", {**TPU, "TPU_WORKER_HOSTNAMES": "t1v-n-0, t1v-n-1,"}, Share(1, 2)),
        ("auto/8", JOB, Share(5, 8)),
        ("auto", {**TPU, "JOB_COMPLETION_INDEX": "1"}, Share(1, 2)),
        ("auto", {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Share(0, 1)),
    ],
)
def test_a_launcher_says_which_process_this_is(text: str, variables: dict[str, str], share: Share) -> None:
    assert read_share(text, {"PATH": "/bin", **variables}) == share


@pytest.mark.parametrize(
    ("text", "variables", "message"),
    [
        ("auto", {}, "no launcher says which process this is"),
        ("auto/4", {}, "no launcher says which process this is"),
        ("auto", JOB, "give auto/N"),
        ("auto", {"SLURM_PROCID": "2"}, "give auto/N"),
        ("auto/4", JOB, "5 is not one of 4 numbers"),
        ("auto/3", SRUN, "SLURM_PROCID=2, SLURM_NTASKS=4 say 2/4"),
        ("auto/3", {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "say 0/1"),
        ("auto", {**SRUN, **ARRAY}, "contradict each other"),
        ("auto", {**MPI, "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, "contradict each other"),
        ("auto", {**SRUN, "SLURM_NTASKS": "two"}, "SLURM_NTASKS='two': expected a number"),
        ("auto", {**SRUN, "SLURM_PROCID": "4"}, "4 is not one of 4 numbers"),
        ("auto", {**ARRAY, "SLURM_ARRAY_TASK_ID": "13", "SLURM_ARRAY_TASK_STEP": "2"}, "in steps of 2"),
        # --array=1,5,9 has three tasks, whose numbers are not in a row.
        ("auto", {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1"}, "9 is not"),
        ("auto", {**TPU, "TPU_WORKER_HOSTNAMES": ""}, "give auto/N"),
        ("auto/x", SRUN, "expected auto, or auto/N"),
        ("auto/", SRUN, "expected auto, or auto/N"),
        ("AUTO", SRUN, "expected I/N"),
    ],
)
def test_what_no_launcher_says_is_refused(text: str, variables: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match="--process") as refused:
        read_share(text, variables)
    assert message in refused.value.message


def test_the_variables_that_were_looked_for_are_named() -> None:
    with pytest.raises(UsageError) as refused:
        read_share("auto", {})
    assert [name for one in LAUNCHERS for name in one.variables if name not in refused.value.message] == []
