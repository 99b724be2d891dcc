"""The queue of the dashboard while agents and server are killed, its API under 50 clients, a log to a page that reconnects."""

import asyncio
import json
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from tests import agents, killed_queue

CLIENTS, LINES_A_S = 50, 1000
RUNS, AGENTS, KILLS, SECONDS = 1000, 8, 60, 30.0
TOY = {"RUNS": 4, "AGENTS": 1, "KILLS": 1, "SECONDS": 2.0, "CLIENTS": 2, "LINES_A_S": 20}
HEADERS = {"Authorization": f"Bearer {agents.TOKEN}"}
PATHS = ("/api/v1/runs?limit=50", "/api/v1/agents", "/api/v1/projects")


async def clients(url: str, seconds: float) -> np.ndarray:
    """Let each of CLIENTS request something once a second; return the latencies in ms."""
    import httpx

    async def client(http: httpx.AsyncClient, number: int) -> list[float]:
        taken = []
        await asyncio.sleep(number / CLIENTS)
        end = time.monotonic() + seconds
        while (begin := time.monotonic()) < end:
            response = await http.get(url + PATHS[len(taken) % len(PATHS)])
            assert response.status_code == 200, response.text
            taken.append(1e3 * (time.monotonic() - begin))
            await asyncio.sleep(max(0.0, begin + 1 - time.monotonic()))
        return taken

    async with httpx.AsyncClient(headers=HEADERS, timeout=30) as http:  # one: it takes longer to make than a request
        return np.concatenate(await asyncio.gather(*(client(http, number) for number in range(CLIENTS))))


async def follow(url: str, run_id: str, every_s: float, seed: int = 0) -> tuple[list[int], int]:
    """Read a run's events until its end, by connections that are cut again and again; return its line numbers and the cuts."""
    import httpx

    draw, numbers, last, cuts = random.Random(seed), [], "", 0
    async with httpx.AsyncClient(headers=HEADERS, timeout=30) as http:
        while True:
            until = time.monotonic() + draw.uniform(0.5, 1.5) * every_s
            headers = {"Last-Event-ID": last} if last else {}
            with suppress(httpx.HTTPError):
                async with http.stream("GET", f"{url}/api/v1/runs/{run_id}/events", headers=headers) as response:
                    event, id_ = "", last
                    async for line in response.aiter_lines():
                        name, _, value = line.partition(": ")
                        event, id_ = (value, id_) if name == "event" else (event, value) if name == "id" else (event, id_)
                        if name == "data" and event == "log":
                            numbers += [n for _, n, _ in json.loads(value)]
                        if event == "end":
                            return numbers, cuts
                        if not line:
                            last, event = id_, ""
                            if time.monotonic() > until:
                                break
            cuts += 1


def load(folder: Path, count: int, seconds: float) -> None:
    """Print the latencies of an API beside light runs, and what became of the lines of a log."""
    from lib.dashboard.database_engine import Database

    lines = int(seconds * LINES_A_S)
    database = Database(f"sqlite:///{folder}/dashboard.db")
    calls = [("tests.light:pour", {"count": lines, "a_second": LINES_A_S})]
    calls += [("tests.light:sleep", {"seconds": 1.0})] * int(seconds * count)
    ids = agents.add_runs(database, calls)
    cluster = killed_queue.Cluster(folder, count, 20.0)
    try:
        killed_queue.wait_until_running(database, 2 * count)

        async def both():
            return await asyncio.gather(clients(cluster.url, seconds), follow(cluster.url, ids[0], 1.0))

        taken, (numbers, cuts) = asyncio.run(both())
    finally:
        cluster.close()
    print(f"   {CLIENTS} clients, one request a second each, beside {count} agents: {len(taken)} requests, median "
          f"{np.median(taken):.1f} ms, p99 {np.percentile(taken, 99):.1f} ms, most {taken.max():.1f} ms")
    print(f"   {lines:,} lines at {LINES_A_S:,} a second to a page that reconnected {cuts} times: {len(numbers):,} came, lost "
          f"{len(set(range(1, lines + 1)) - set(numbers))}, doubled {len(numbers) - len(set(numbers))}, in order: "
          f"{numbers == sorted(numbers)}")


def main() -> None:
    """Print what became of the runs, the latencies, and the lines."""
    with tempfile.TemporaryDirectory() as home:
        summary = killed_queue.run(Path(home), RUNS, AGENTS, KILLS, silent_s=5.0, every_s=(1.0, 4.0), within_s=1800.0)
        print("   " + ", ".join(f"{name} {value}" for name, value in summary.items()))
    with tempfile.TemporaryDirectory() as home:
        load(Path(home), AGENTS, SECONDS)
