"""A trace of hundreds of megabytes: memory stays bounded, the figures stay exact."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from trace_cases import STEP, header, training_step

SIZE = 200_000_000
MEASURE = """
import json, resource, sys, time
from pathlib import Path
from knockgraph.traces.categories import Categories
from knockgraph.traces.summary import summarise_file
import knockgraph.traces.page
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, start = peak(), time.perf_counter()
report = summarise_file(Path(sys.argv[1]), Categories())
seconds = time.perf_counter() - start
print(json.dumps({"grown": peak() - before, "seconds": seconds, "timed": report["events"]["timed"],
                  "steps": report["steps"]["count"], **{k: report[k] for k in ("span_ns", "wall_ns", "characters")}}))
"""


@pytest.mark.full
def test_memory_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    shapes = {
        "Input Dims": [[6607, 64], [64, 64], []],
        "Input type": ["float", "float", "Scalar"],
        "Concrete Inputs": [""],
    }
    steps = 0
    with path.open("w") as file:
        file.write(json.dumps(header())[:-1] + ', "traceEvents": [')
        while file.tell() < SIZE:
            events = training_step(steps, 5_000 + steps * STEP)
            for event in events:
                if event.get("cat") == "cpu_op":
                    event["args"] = {**event.get("args", {}), **shapes}
            file.write((",\n" if steps else "") + json.dumps(events, indent=1)[1:-1])
            steps += 1
        file.write("]}")
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    print(found)
    assert found["characters"] == path.stat().st_size >= SIZE
    assert found["steps"] == steps
    assert found["span_ns"] == steps * STEP * 1000
    assert found["wall_ns"]["forward"] == steps * 150_000
    assert sum(found["wall_ns"].values()) == found["span_ns"]
    assert found["grown"] < 300_000_000
