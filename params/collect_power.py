#!/usr/bin/env python3
"""Log the power of an NVIDIA Jetson board by its INA3221 and INA238 sensors: idle first, then while a command runs.

    python3 collect_power.py FOLDER [--idle-s 120] [--period-ms 1] -- COMMAND [ARGUMENT ...]

Leave the board alone until the command starts. FOLDER then holds ``idling_power.json`` (mean power of the idle board, in
microwatts) and ``power_log.log`` (a line a sample: YYYYMMDD-HH:MM:SS.ffffff,mV,mA), to lie beside the engine's files that the
command writes (trt_engine_info.json, trt_layer_latency.json). Time stamps are the board's local time: a profiler that stamps
layers must use the same clock. The exit status is the command's, or 2 for wrong input.

Needs Python 3.6 and nothing else: copy this one file to the board. Written from the documented formats; not tested on a board.
``BOARDS`` says which rails are the power of which board; lib/measure/energy/meters.py reads the same table.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from datetime import datetime
from pathlib import Path

# total: the rails whose sum is the power; rails that they feed are never added. The first row whose rails (total and known_by)
# are all there is the board. covers: module (without its carrier board) or board. VDD_MUX (TX1, TX2) feeds the carrier board.
Board = namedtuple("Board", "name total known_by covers source")
BOARDS = (
    Board("AGX Thor", ("VIN",), ("VDD_CPU_SOC_MSS",), "board",
          "INA238 at the input of the carrier board: forums.developer.nvidia.com/t/366461, jetson_stats pull request 900"),
    Board("AGX Thor, carrier board without INA238", ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"), (), "module",
          "forums.developer.nvidia.com/t/366461: the INA3221 is left; its rails are taken to be fed as those of the AGX Orin"),
    Board("AGX Orin", ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"), (), "module",
          "forums.developer.nvidia.com/t/223111: VIN_SYS_5V0 feeds VDDQ_VDD2_1V8AO, the other two have a source of their own"),
    Board("AGX Xavier", ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"), (), "module",
          "Product Design Guide DG-09840-001, 5.6.2: six supplies side by side, none feeds another"),
    Board("Nano", ("POM_5V_IN",), (), "module",
          "L4T 32.6.1 guide, power_management_nano; forums.developer.nvidia.com/t/73608: it feeds POM_5V_GPU and POM_5V_CPU"),
    Board("Xavier NX, Orin NX or Orin Nano", ("VDD_IN",), ("VDD_CPU_GPU_CV", "VDD_SOC"), "module",
          "forums.developer.nvidia.com/t/200883, /t/242804: VDD_IN is the total of the module"),
    Board("TX2 NX", ("VDD_IN",), ("VDD_CPU_GPU", "VDD_SOC"), "module",
          "L4T 32.6.1 guide: VDD_IN is the input of the module (energymon's JetsonPowerRails.md)"),
    Board("TX2", ("VDD_IN",), ("VDD_SYS_GPU", "VDD_SYS_CPU"), "module",
          "L4T 32.6.1 guide: VDD_IN is the input of the module (energymon's JetsonPowerRails.md)"),
    Board("TX1", ("VDD_IN",), ("VDD_GPU", "VDD_CPU"), "module",
          "L4T 32.6.1 guide: VDD_IN is the input of the module (energymon's JetsonPowerRails.md)"),
    Board("another board with VDD_IN", ("VDD_IN",), (), "module", "VDD_IN is the module's input on every Jetson that has it"))
# chip: numbers of its channels, files of a channel's label, voltage (mV) and current (mA). ina3221x: JetPack 4.
CHIPS = {"ina3221": ((1, 2, 3), "in{}_label", "in{}_input", "curr{}_input"),
         "ina238": ((1,), "in{}_label", "in{}_input", "curr{}_input"),
         "ina3221x": ((0, 1, 2), "rail_name_{}", "in_voltage{}_input", "in_current{}_input")}
UNLABELLED = {"ina238": "VIN"}  # the driver may give no label
SENSORS = (Path("/sys/class/hwmon"), Path("/sys/bus/iio/devices"))  # where the kernel lists them; the latter on JetPack 4
Channel = namedtuple("Channel", "chip label volts amperes")

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


def find_channels(folders):
    """Return the board in these folders of sensors, and the channels whose sum is its power."""
    found = {}
    for sensor in sorted(path for folder in folders for path in folder.glob("*")):
        chip = text(sensor / "name")
        numbers, label, volts, amperes = CHIPS.get(chip, ((), "", "", ""))
        for number in numbers:
            channel = Channel(chip, text(sensor / label.format(number)) or UNLABELLED.get(chip, f"channel {number}"),
                              sensor / volts.format(number), sensor / amperes.format(number))
            if channel.label != "NC" and channel.volts.exists() and channel.amperes.exists():  # NC: not connected
                found.setdefault(channel.label, channel)
    where = " or ".join(map(str, folders))
    if not found:
        raise InputError(f"no INA3221 or INA238 sensor in {where}")
    for board in BOARDS:
        if {*board.total, *board.known_by} <= set(found):
            return board, [found[label] for label in board.total]
    raise InputError(f"the rails {', '.join(found)} in {where} are of no board in BOARDS of params/collect_power.py; "
                     "add the board there, with the rails whose sum is its power")


class Sensor:
    """The channels of a board; reads that fail are counted."""

    def __init__(self, folders):
        self.board, self._channels = find_channels(folders)
        self.label = " + ".join(self.board.total)
        self.failed = 0

    def read(self):
        """Return mV and mA, of several channels 1000 mV and their sum in mW; None where the sensor did not answer."""
        try:
            rails = [(float(channel.volts.read_text()), float(channel.amperes.read_text())) for channel in self._channels]
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
    parser.add_argument("--hwmon", type=Path, help="where the kernel lists its sensors (default: {})".format(
        " and ".join(map(str, SENSORS))))
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
        sensor = Sensor([options.hwmon] if options.hwmon else SENSORS)
        os.makedirs(str(options.folder), exist_ok=True)
        idle_w = log_idle(sensor, options.idle_s, options.period_ms / 1e3, idle)
        print(f"{idle}: {idle_w:.3f} W, {sensor.label} ({sensor.board.covers} of Jetson {sensor.board.name})", file=sys.stderr)
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
