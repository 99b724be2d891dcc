"""Tables of scheduling: jobs and devices as people write them, and what ran."""

from math import nan

from lib.tables.column import choice, count, number, text, whole

JOBS = {
    "job_id": text("the job"),
    "workload_id": text("what is trained: id in params/workloads.yaml", default=""),
    "notebook": text("path of a notebook to execute instead", default=""),
    "parameters": text("parameters of the notebook, as a JSON object", default=""),
    "steps": count("training steps of the workload", empty=True, default=nan),
    "arrival_s": number("when it arrives", default=0.0),
    "deadline_s": number("when it should have ended; empty: no deadline", empty=True, default=nan),
    "memory_mb": number("memory that it needs on its device", default=0.0),
    "cpu_cores": number("host cores needed beside a GPU, or cores of the CPU slot", default=0.0),
    "devices": count("devices of one type at once; memory and cores are of each", default=1),
}

DEVICES = {
    "device": text("a device, or a group of equal ones"),
    "type": text("device type; devices of one type are alike"),
    "count": whole("devices in the group", default=1),
    "memory_mb": number("memory of each; empty: not known", empty=True, default=nan),
    "cpu_cores": number("cores of each CPU slot", empty=True, default=nan),
    "idle_w": number("power when idle", empty=True, default=nan),
    "busy_w": number("power at work", empty=True, default=nan),
    "setup_s": number("before each job", default=0.0),
    "price_per_hour": number("price of an hour of use", empty=True, default=nan),
}

SCHEDULE = {
    "job_id": text("the job"),
    "device": text("where it ran"),
    "start_s": number("seconds since the schedule's start"),
    "end_s": number("when it ended there"),
    "attempt": count("from 1"),
    "status": choice("end of the attempt; moved: to another device; lost: killed, or disk full",
                     "done", "failed", "retried", "moved", "lost", "cancelled"),
}

DURATIONS = {
    "run": text("the folder of the run"),
    "job_id": text("the job"),
    "notebook": text("what was executed"),
    "device_type": text("device type of the slot"),
    "seconds": number("how long it took"),
}
