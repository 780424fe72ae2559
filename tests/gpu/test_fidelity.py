"""A GPU measures the distance to dense attention that a CPU measures."""

from __future__ import annotations

import pytest
import torch

from hipcli.engine.evaluation.fidelity import measure
from tests.engine.tiny import random_ids
from tests.gpu.test_engine import LENGTH, METHODS, runners

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", METHODS)
def test_distances_are_the_cpus(name) -> None:
    reports = []
    for runner in runners(torch.float32):
        *_, (_, (report,)) = measure(runner, [(name, METHODS[name]())], random_ids(LENGTH))
        reports.append(report)
    host, gpu = reports
    for part in ("all", "sparse"):
        assert gpu[part]["tokens"] == host[part]["tokens"]
        # Nothing is sparse in dense attention: no figures.
        for figure in ("perplexity", "ratio", "kl", "top_1") if host[part]["tokens"] else ():
            assert gpu[part][figure] == pytest.approx(host[part][figure], rel=1e-2, abs=1e-3)
    assert len(gpu["layers"]) == len(host["layers"])
    for figure in ("mass", "top_keys"):
        if host[figure] is None:
            assert name == "dense" and gpu[figure] is None
            continue
        assert gpu[figure] == pytest.approx(host[figure], rel=1e-2)
