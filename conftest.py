"""Settings for every test run: kernels that agree bit for bit, figures that are compared, and no
network."""

import os
import platform
import runpy
from pathlib import Path

import pytest

# The same values as glassformer.lab.record.kernel_environment (a test compares). They stand here
# once more because they must be set before PyTorch loads, and the package must not be imported
# before pytest has installed the hook that checks its shapes.
KERNEL_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
if platform.machine().lower() in {"x86_64", "amd64"}:
    KERNEL_ENVIRONMENT |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
os.environ.update(KERNEL_ENVIRONMENT)

OFFLINE = Path(__file__).parent / "tests" / "support" / "offline"
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(OFFLINE), os.environ.get("PYTHONPATH")))
)
runpy.run_path(str(OFFLINE / "sitecustomize.py"))


def pytest_collectstart(collector):
    """Compare PNG figures too: nbval leaves them out."""
    skipped = getattr(collector, "skip_compare", None)
    if skipped:
        collector.skip_compare = tuple(kind for kind in skipped if kind != "image/png")
        os.environ["GLASSFORMER_DEVICE"] = "cpu"  # chapters are recorded on the CPU


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is nothing to schedule
def pytest_xdist_make_scheduler(config, log):
    """As `--dist loadscope`, but chapters that are recorded again wait for no one: in one work unit
    they would keep one worker busy for minutes while the other has nothing left to do."""
    if config.option.dist != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            alone = "::test_N04_a_chapter_runs_to_the_same_bytes[" in nodeid
            return nodeid if alone else super()._split_scope(nodeid)

    return Scheduling(config, log)
