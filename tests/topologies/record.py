#!/usr/bin/env python3
"""Records what rankrun reads of a machine's /sys and /proc: record.py [ROOT] > FILE. ROOT is / or a copy of the two."""

import glob
import os
import re
import sys

ROOT = sys.argv[1] if len(sys.argv) > 1 else "/"
CPU = "sys/devices/system/cpu"
FILES = [
    CPU + "/online",
    CPU + "/cpu[0-9]*/topology/thread_siblings_list",
    CPU + "/cpu[0-9]*/topology/core_siblings_list",
    CPU + "/cpu[0-9]*/cpu_capacity",
    CPU + "/cpu[0-9]*/cache/index[234]/level",
    CPU + "/cpu[0-9]*/cache/index[234]/shared_cpu_list",
    "sys/devices/cpu_atom/cpus",
    "sys/devices/system/node/node[0-9]*/cpulist",
    "sys/bus/pci/devices/*/class",
    "sys/bus/pci/devices/*/vendor",
    "sys/bus/pci/devices/*/numa_node",
    "sys/bus/pci/devices/*/local_cpulist",
    "sys/class/infiniband/*/device/vendor",
    "sys/class/infiniband/*/device/numa_node",
    "sys/class/infiniband/*/device/local_cpulist",
    "sys/class/net/*/device/vendor",
    "sys/class/net/*/device/numa_node",
    "sys/class/net/*/device/local_cpulist",
]
DIRECTORIES = [
    "sys/devices/system/node",
    "sys/bus/pci/devices",
    "sys/class/infiniband",
    "sys/class/net",
    "proc/driver/nvidia/gpus",
]


def written(numbers):
    """0,1,2,5 as 0-2,5."""
    parts, numbers = [], sorted(numbers)
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


def text_of(path):
    try:
        with open(os.path.join(ROOT, path)) as file:
            return file.read().replace("\0", "").strip()
    except OSError:
        return ""


def list_of(directory):
    path = os.path.join(ROOT, directory)
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def main():
    # What many CPUs have alike is one line. Of the devices on the bus, graphics and accelerators are wanted.
    alike, lines = {}, []
    pci = "sys/bus/pci/devices"
    wanted = [name for name in list_of(pci) if re.match("0x(03|12)", text_of(f"{pci}/{name}/class"))]
    for pattern in FILES:
        for path in glob.glob(os.path.join(ROOT, pattern)):
            name = "/" + os.path.relpath(path, ROOT)
            text = text_of(name[1:])
            if not text or (name[1:].startswith(pci) and name.split("/")[5] not in wanted):
                continue
            of_cpu = re.fullmatch(r"(/sys/devices/system/cpu/cpu)(\d+)(/.*)", name)
            if of_cpu:
                alike.setdefault((of_cpu[1], of_cpu[3], text), []).append(int(of_cpu[2]))
            else:
                lines.append(f"{name} = {text}")
    lines += [f"{before}[{written(numbers)}]{after} = {text}" for (before, after, text), numbers in alike.items()]
    for directory in DIRECTORIES:
        names = wanted if directory == pci else list_of(directory)
        if names:
            lines.append(f"/{directory}/ = {' '.join(names)}")
    print("\n".join(sorted(lines)))


main()
