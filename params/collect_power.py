#!/usr/bin/env python3
"""Log the power of a board with an INA3221 sensor (such as NVIDIA's Jetson): idle first, then while a command runs.

    python3 collect_power.py FOLDER [--idle-s 120] [--period-ms 1] -- COMMAND [ARGUMENT ...]

Leave the board alone until the command starts. FOLDER then holds ``idling_power.json`` (mean power of the idle board, in
microwatts) and ``power_log.log`` (a line a sample: YYYYMMDD-HH:MM:SS.ffffff,mV,mA), to lie beside the engine's files that the
command writes (trt_engine_info.json, trt_layer_latency.json). Time stamps are the board's local time: a profiler that stamps
layers must use the same clock. The exit status is the command's, or 2 for wrong input.

Needs Python 3.8 and nothing else; copy it to the board. Written from the documented formats; not tested on a board.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

STAMP = "%Y%m%d-%H:%M:%S.%f"
LEAST = 10  # samples of an idle board
FLUSH_S = 1.0


class InputError(Exception):
    """What is wrong, in one line."""


def text(path):
    """Return what a small file says; empty where it cannot be read, with a warning where it is no text."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    except UnicodeDecodeError:
        print(f"warning: {path} is no text and is left out", file=sys.stderr)
        return ""


def find_channels(folder):
    """Return labels and files of voltage (mV) and current (mA): the channel VDD_IN of the whole board, else all connected."""
    channels = []
    for sensor in sorted(folder.glob("hwmon*")):
        if text(sensor / "name") == "ina3221":
            for number in (1, 2, 3):
                volts, amperes = sensor / f"in{number}_input", sensor / f"curr{number}_input"
                if volts.exists() and amperes.exists():
                    channels.append((text(sensor / f"in{number}_label"), volts, amperes))
    if not channels:
        raise InputError(f"no INA3221 sensor in {folder}")
    whole = [channel for channel in channels if channel[0] == "VDD_IN"][:1]
    return whole or [channel for channel in channels if channel[0] not in ("", "NC")] or channels


class Sensor:
    """The channels of a board; reads that fail are counted."""

    def __init__(self, folder):
        self._channels = find_channels(folder)
        self.label = " + ".join(filter(None, (label for label, _, _ in self._channels)))
        self.failed = 0

    def read(self):
        """Return mV and mA, of several channels 1000 mV and their sum in mW; None where the sensor did not answer."""
        try:
            rails = [(float(volts.read_text()), float(amperes.read_text())) for _, volts, amperes in self._channels]
            sample = rails[0] if len(rails) == 1 else (1000.0, sum(volts * amperes for volts, amperes in rails) / 1000.0)
            if not all(map(math.isfinite, sample)):
                raise ValueError(sample)
            return sample
        except (OSError, ValueError):
            self.failed += 1
            return None


def log_idle(sensor, seconds, period_s, path):
    """Write the mean power of the idle board to ``path``; return it in W."""
    powers, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        sample = sensor.read()
        if sample:
            powers.append(sample[0] * sample[1])
        time.sleep(period_s)
    if len(powers) < LEAST:
        raise InputError(f"{len(powers)} samples of the idle board in {seconds:g} s; {LEAST} are needed")
    mean_uw = sum(powers) / len(powers)
    if mean_uw <= 0:
        raise InputError(f"the idle board draws {mean_uw / 1e6:g} W by its sensor: that channel measures nothing")
    with open(str(path), "x") as file:
        json.dump({"timestamp": datetime.now().strftime(STAMP), "avg_idle_power": mean_uw}, file)
    return mean_uw / 1e6


def log_command(sensor, command, period_s, path):
    """Run a command and log the power until it ends; return its exit status and the number of samples."""
    with open(str(path), "x") as file:
        process = subprocess.Popen(command)
        samples, flush = 0, time.monotonic() + FLUSH_S
        try:
            while process.poll() is None:
                sample = sensor.read()
                if sample:
                    file.write("{},{:g},{:g}\n".format(datetime.now().strftime(STAMP), *sample))
                    samples += 1
                if time.monotonic() > flush:
                    file.flush()
                    flush = time.monotonic() + FLUSH_S
                time.sleep(period_s)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
    return process.returncode, samples


def parse(arguments):
    """Return the options and the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage="%(prog)s FOLDER [options] -- COMMAND ...")
    parser.add_argument("folder", type=Path, help="where the two files are written; nothing there is overwritten")
    parser.add_argument("--idle-s", type=float, default=120.0, help="how long to log the idle board, in s (default 120)")
    parser.add_argument("--period-ms", type=float, default=1.0, help="pause between samples, in ms (default 1)")
    parser.add_argument("--hwmon", type=Path, default=Path("/sys/class/hwmon"), help="where the kernel lists its sensors")
    if "--" not in arguments or not arguments[arguments.index("--") + 1:]:
        parser.error("no command: give one after --")
    split = arguments.index("--")
    options = parser.parse_args(arguments[:split])
    if not 0 < options.idle_s <= 3600 or not 0 <= options.period_ms <= 1000:
        parser.error("--idle-s is above 0 and at most 3600, --period-ms is 0 to 1000")
    return options, arguments[split + 1:]


def main(arguments):
    """Log the idle board, then the command; return the exit status."""
    options, command = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the command ends with this programme
    idle, log = options.folder / "idling_power.json", options.folder / "power_log.log"
    try:
        for path in (idle, log):
            if path.exists():
                raise InputError(f"{path} exists already and is not overwritten")
        sensor = Sensor(options.hwmon)
        os.makedirs(str(options.folder), exist_ok=True)
        idle_w = log_idle(sensor, options.idle_s, options.period_ms / 1e3, idle)
        print("{}: {:.3f} W, channel {}".format(idle, idle_w, sensor.label or "1"), file=sys.stderr)
        status, samples = log_command(sensor, command, options.period_ms / 1e3, log)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was logged is kept", file=sys.stderr)
        return 130
    print(f"{log}: {samples} samples; {sensor.failed} reads failed; the command ended with {status}",
          file=sys.stderr)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
