"""``python -m bench [--quick] [--json FILE] [JOB ...]``"""

import argparse
import json
import platform
import sys
from pathlib import Path

import torch

from bench import attention, beam, decode, memory, training_step

JOBS = {
    "training": training_step.run,
    "reading": attention.run,
    "decode": decode.run,
    "beam": beam.run,
    "memory": memory.run,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Speed, side by side.")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="three rounds instead of nine")
    parser.add_argument("--toy", action="store_true", help="tiny models: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    given = parser.parse_args(arguments)
    unknown = [job for job in given.jobs if job not in JOBS]
    if unknown:
        parser.error(f"no job {', '.join(unknown)}; there are {', '.join(JOBS)}")
    rounds = 1 if given.toy else 3 if given.quick else 9
    machine = {
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
    }
    print("  ".join(f"{name} {value}" for name, value in machine.items()), end="\n\n")
    tables = []
    for job in given.jobs or JOBS:
        for table in JOBS[job]("toy" if given.toy else "full", rounds):
            print(table, end="\n\n", flush=True)
            tables.append({"kind": job, **table.to_dict()})
    if given.json:
        given.json.write_text(json.dumps({"machine": machine, "tables": tables}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
