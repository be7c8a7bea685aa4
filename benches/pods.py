"""A study in pods of Kubernetes, seen from outside: the manifests, and the way to kubectl.

One MPIJob holds the whole study: its launcher pod runs `ringduel run` with the same words, which finds its workers in
the operator's hostfile. A TrainJob holds one launch of DDP alone, for clusters without the MPI operator.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from benches.config import Resolved
from benches.driver import environment
from benches.errors import UserError
from benches.output import print_json
from benches.spec import Case, dump
from launchers.choose import launcher
from launchers.kubernetes import RESULTS, KubernetesSpec, mpi_job, object_name, train_job
from launchers.spec import LaunchSpec
from launchers.supervise import last_line, output

FOLDER = "/opt/ringduel"
"""This project in the image (Dockerfile)."""
RUNS = f"{RESULTS}/runs"
CASE = "/tmp/case.yaml"
MPI_JOB = "mpijob.yaml"
APPLY_S = 60.0


def manifests(resolved: Resolved, words: list[str], config_dir: Path | None) -> dict[str, str]:
    """Text by name of its file. words: as typed. Raises UserError where something is missing that a pod needs."""
    asked = _asked(resolved)
    if config_dir is not None:
        raise UserError(
            f"--config-dir={config_dir}: the pods do not have it; put it into the image, under {FOLDER}/conf"
        )
    if asked.results_claim is None:
        raise UserError(
            "cluster.kubernetes.results_claim=null: the pods need one folder for results; name a PersistentVolumeClaim "
            "that all of them can write (ReadWriteMany)"
        )
    name, cases = resolved.study.name, [one.case for one in resolved.study.contestants]
    largest = LaunchSpec(
        python="python",
        args=(),
        nodes=max(case.cluster.nodes for case in cases),
        ranks_per_node=max(case.cluster.ranks_per_node for case in cases),
        cwd=FOLDER,
    )
    # Results of the pods lie in the claim, wherever those of this machine do.
    driver = ("ringduel", "run", *(word for word in words if not word.startswith("results=")), f"results={RUNS}")
    return {MPI_JOB: mpi_job(asked, name, largest, driver), **_train_jobs(resolved, asked)}


def write(resolved: Resolved, words: list[str], config_dir: Path | None, folder: Path) -> list[Path]:
    """Write the manifests into `folder`; their paths, the MPIJob's first. Raises UserError."""
    texts = manifests(resolved, words, config_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise UserError(f"results={resolved.results}: cannot be written: {error.strerror or error}") from error
    return [folder / name for name in texts]


def apply(resolved: Resolved, words: list[str], config_dir: Path | None, as_json: bool) -> int:
    """Write the manifests and hand the MPIJob to kubectl. Raises UserError where that is missing or refuses it."""
    path, *_ = write(resolved, words, config_dir, resolved.results / f"{resolved.study.name}.kubernetes")
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise UserError(
            f"cluster=kubernetes: no kubectl on the PATH; install it, or where it is: kubectl apply -f {path}"
        )
    code, said = output([kubectl, "apply", "-f", str(path)], limit_s=APPLY_S)
    if code != 0:
        raise UserError(f"cluster=kubernetes: kubectl apply -f {path}: {last_line(said)}")
    asked, name = _asked(resolved), object_name(resolved.study.name)
    space = f" -n {asked.namespace}" if asked.namespace else ""
    follow = f"kubectl logs -f{space} job/{name}-launcher"
    if as_json:
        said_lines = said.strip().splitlines()
        print_json({"study": resolved.study.name, "manifest": str(path), "said": said_lines, "follow": follow})
        return 0
    print(said.strip())
    print(f"\nFollow the study:        {follow}")
    print(f"Its results:             {RUNS}/{resolved.study.name} in the claim {asked.results_claim}")
    print(f"Before it runs again:    kubectl delete{space} mpijob/{name}")
    return 0


def _asked(resolved: Resolved) -> KubernetesSpec:
    assert resolved.kubernetes is not None
    return resolved.kubernetes


def _train_jobs(resolved: Resolved, asked: KubernetesSpec) -> dict[str, str]:
    """One for each case that torchrun serves."""
    cases = {one.case.id: one.case for one in resolved.study.contestants if launcher(one.case) == "torchrun"}
    found = {}
    for case_id, case in cases.items():
        name, out = f"{resolved.study.name}-{case_id}", f"{RUNS}/{resolved.study.name}.plan/launches/{case_id}/0"
        spec = _train_spec(case, out, resolved.study.rounds)
        found[f"trainjob-{case_id}.yaml"] = train_job(asked, name, spec, CASE, dump(case))
    return found


def _train_spec(case: Case, out: str, rounds: int) -> LaunchSpec:
    return LaunchSpec(
        python="python",
        args=("-m", "benches.worker", CASE, "--out", out, "--rounds", str(rounds)),
        nodes=case.cluster.nodes,
        ranks_per_node=case.cluster.ranks_per_node,
        cwd=FOLDER,
        env={**environment(case), "PYTHONPATH": FOLDER},
    )
