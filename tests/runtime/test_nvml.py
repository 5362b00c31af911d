"""Discovery on the simulated driver, each in a process of its own: one process sees one machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DISCOVER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from tessera.runtime.nvml import discover
print(json.dumps([asdict(device) for device in discover(Path(sys.argv[1]))]))
"""

ONE_FAILS = """
import json, sys
from pathlib import Path
import pynvml
from tessera.runtime.nvml import open_nvml

real = pynvml.nvmlDeviceGetUUID
def failing(handle):
    if pynvml.nvmlDeviceGetIndex(handle) == 1:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    return real(handle)
pynvml.nvmlDeviceGetUUID = failing
with open_nvml(Path(sys.argv[1])) as nvml:
    found = nvml.inventory()
print(json.dumps([[d.index for d in found.devices], [[f.index, f.why] for f in found.faults]]))
"""

TWO_CARDS = """driver version=13.0 context_mib=0
device uuid=GPU-00000000-0000-4000-8000-000000000001 name="NVIDIA A100-SXM4-80GB" memory_mib=81920 numa=1
device uuid=GPU-00000000-0000-4000-8000-000000000002 name="Some Card" memory_mib=1000
"""


@pytest.fixture
def description(tmp_path: Path, native: Path) -> Path:
    path = tmp_path / "machine.conf"
    path.write_text(TWO_CARDS)
    return path


def _script(text: str, *arguments: object) -> Any:
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_devices_are_what_the_driver_says(description: Path) -> None:
    first, second = _script(DISCOVER, description)
    assert (first["uuid"], first["index"]) == ("GPU-00000000-0000-4000-8000-000000000001", 0)
    assert (first["model"], first["memory_mib"], first["numa"]) == ("NVIDIA A100-SXM4-80GB", 81920, 1)
    assert first["milli_tflops"] == 312_000
    assert (second["index"], second["memory_mib"], second["milli_tflops"]) == (1, 1000, None)


def test_what_the_driver_keeps_of_a_card_is_nobodys(tmp_path: Path, native: Path) -> None:
    """kai 6, row 1: two halves of 15,360 MiB do not fit a T4 that keeps 450 for itself."""
    path = tmp_path / "machine.conf"
    path.write_text('device name="Tesla T4" memory_mib=15360 reserved_mib=450\n')
    (device,) = _script(DISCOVER, path)
    assert device["memory_mib"] == 14910


def test_a_device_that_fails_does_not_hide_the_others(description: Path) -> None:
    devices, faults = _script(ONE_FAILS, description)
    assert devices == [0]
    ((index, why),) = faults
    assert index == 1
    assert "lost" in why.lower()


def test_what_is_no_description_is_no_driver(tmp_path: Path, native: Path) -> None:
    path = tmp_path / "machine.conf"
    path.write_text("nothing like it\n")
    command = [sys.executable, "-c", DISCOVER, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert "UnavailableError: no NVIDIA driver found" in ended.stderr


ANSWERS = """
import json, sys
from pathlib import Path
import pynvml
from tessera.runtime.nvml import open_nvml

with open_nvml(Path(sys.argv[1])) as nvml:
    uuid = nvml.inventory().devices[0].uuid
    found = []
    for name in ("NOT_FOUND", "INSUFFICIENT_SIZE", "NOT_SUPPORTED"):
        code = getattr(pynvml, "NVML_ERROR_" + name)
        def failing(handle, after):
            raise pynvml.NVMLError(code)
        pynvml.nvmlDeviceGetProcessUtilization = failing
        found.append(nvml.process_samples(uuid, 0))
print(json.dumps(found))
"""


def test_a_driver_without_samples_is_told_from_one_without_news(description: Path) -> None:
    assert _script(ANSWERS, description) == [[], [], None]


SAMPLES = """
import ctypes, json, os, sys
from pathlib import Path
from tessera.runtime.native import SIMULATED_CUDA
from tessera.runtime.nvml import open_nvml

with open_nvml(Path(sys.argv[1])) as nvml:
    busy, idle = (device.uuid for device in nvml.inventory().devices)
    before = nvml.process_samples(busy, 0)
    cuda, context = ctypes.CDLL(str(SIMULATED_CUDA)), ctypes.c_void_p()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    results = [
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuModuleLoadData(ctypes.byref(module), b"image"),
        cuda.cuModuleGetFunction(ctypes.byref(function), module, b"work_ms_250"),
        cuda.cuLaunchKernel(function, *[1] * 6, 0, None, None, None),
        cuda.cuStreamSynchronize(None),
    ]
    (sample,) = nvml.process_samples(busy, 0)
    after = nvml.process_samples(busy, sample.stamp_us + 10_000_000)
print(json.dumps([results, before, sample.pid == os.getpid(), sample.percent, after, idle != busy]))
"""


def test_samples_are_of_the_processes_that_were_busy_since_and_of_no_others(description: Path) -> None:
    results, before, is_own, percent, after, _ = _script(SAMPLES, description)
    assert set(results) == {0}
    assert (before, after) == ([], []), "nobody was busy yet, and nobody since then"
    assert is_own
    assert 0 < percent <= 100
