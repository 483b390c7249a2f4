"""Ray clusters of several nodes on one machine, and their workers."""

import os
import sys
from contextlib import contextmanager

import psutil
import pytest


@contextmanager
def started_cluster(nodes=2, **resources):
    """Start nodes with an object store each, and connect; the path of this process is theirs."""
    import ray
    from ray.cluster_utils import Cluster

    with changed_path():
        arguments = {"num_cpus": 1, "object_store_memory": 80 << 20, **resources}
        cluster = Cluster(
            initialize_head=True, head_node_args={**arguments, "include_dashboard": False}
        )
        for _ in range(nodes - 1):
            cluster.add_node(**arguments)
        ray.init(cluster.address, log_to_driver=False, logging_level="error")
        try:
            cluster.wait_for_nodes()
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@contextmanager
def started_here(**resources):
    """Start one local node."""
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    with changed_path():
        ray.init(**quiet, **resources)
        try:
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def changed_path():
    """Let workers import what this process can, at its priority: Ray would give them the lowest."""
    path = os.pathsep.join([os.getcwd(), *sys.path])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("RAY_worker_niceness", "0")
        yield


def busy_workers(task):
    """Find the processes below this one that run a task of this name."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] == [f"ray::{task}"]:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
