"""The Job and the Service of the documentation: that they fit, and the TF_CONFIG of each pod."""

import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml

DOCS = pathlib.Path(__file__).parents[2] / "docs"
BLOCKS = [
    block
    for page in sorted(DOCS.glob("*.md"))
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    if "kind: Job" in block
]


@pytest.fixture(scope="module")
def manifests():
    (block,) = BLOCKS
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(block)}


def test_the_service_gives_the_pods_of_the_job_their_names(manifests):
    service, job = manifests["Service"], manifests["Job"]
    assert service["spec"]["clusterIP"] == "None"  # the text; YAML's null would make a cluster address
    assert service["spec"]["publishNotReadyAddresses"] is True
    # Kubernetes itself labels the pods of a job by its name.
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_all_workers_run_at_once(manifests):
    spec = manifests["Job"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (workers,) = (int(one["value"]) for one in container["env"] if one["name"] == "WORKERS")
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == workers
    assert spec["backoffLimit"] >= 10 * workers
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


@pytest.mark.parametrize("workers", [1, 4, 12])
@pytest.mark.parametrize("resumes", [False, True])
def test_each_pod_gets_its_tf_config(manifests, workers, resumes, tmp_path):
    """The command runs as it is, but for the place of files and a `python` that shows what it got."""
    job, service = manifests["Job"]["metadata"]["name"], manifests["Service"]
    (container,) = manifests["Job"]["spec"]["template"]["spec"]["containers"]
    (port,) = (port["port"] for port in service["spec"]["ports"])
    (tmp_path / "run1").mkdir()
    if resumes:
        (tmp_path / "run1" / "checkpoint").touch()
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$TF_CONFIG"\necho "$@"\n')
    python.chmod(0o755)
    (script,) = container["args"]
    index = workers - 1
    run = subprocess.run(
        [*container["command"], script.replace("/shared/", f"{tmp_path}/")],
        capture_output=True,
        text=True,
        env={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "WORKERS": str(workers),
            "JOB_COMPLETION_INDEX": str(index),
        },
        check=True,
    )
    config, command = run.stdout.splitlines()
    assert json.loads(config) == {
        "cluster": {
            "worker": [f"{job}-{i}.{service['metadata']['name']}:{port}" for i in range(workers)]
        },
        "task": {"type": "worker", "index": index},
    }
    assert command.startswith("-u examples/dlrm_criteo.py ")
    assert command.endswith(" --quiet --resume" if resumes else " --quiet")
