"""The queue of the dashboard while its server is killed, and its API under 50 clients beside light runs."""

import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np

from tests import killed_queue
from tests.dashboards import BEARER, serving, site_of

CLIENTS, RUNS, KILLS, SECONDS = 50, 200, 10, 30.0
TOY = {"RUNS": 4, "KILLS": 1, "SECONDS": 2.0, "CLIENTS": 2}
PATHS = ("/api/v1/runs?limit=50", "/api/v1/agents", "/api/v1/projects")


async def clients(url: str, seconds: float) -> np.ndarray:
    """Let each of CLIENTS request something once a second; return the latencies in ms."""
    import httpx

    async def client(http: httpx.AsyncClient, number: int) -> list[float]:
        taken, end = [], time.monotonic() + seconds
        await asyncio.sleep(number / CLIENTS)
        while (begin := time.monotonic()) < end:
            response = await http.get(url + PATHS[len(taken) % len(PATHS)])
            assert response.status_code == 200, response.text
            taken.append(1e3 * (time.monotonic() - begin))
            await asyncio.sleep(max(0.0, begin + 1 - time.monotonic()))
        return taken

    async with httpx.AsyncClient(headers=BEARER, timeout=30) as http:
        return np.concatenate(await asyncio.gather(*(client(http, number) for number in range(CLIENTS))))


def main() -> None:
    """Print what became of the runs, and the latencies."""
    with tempfile.TemporaryDirectory() as home:
        summary = killed_queue.run(Path(home), RUNS, KILLS, every_s=(4.0, 8.0), within_s=1800.0)
        print("   " + ", ".join(f"{name} {value}" for name, value in summary.items()))
    with tempfile.TemporaryDirectory() as home:
        database, runner = killed_queue.opened(Path(home))
        killed_queue.add_runs(database, [("tests.light:sleep", {"seconds": 1.0})] * RUNS)
        with serving(site_of(database, runner)) as url:
            taken = asyncio.run(clients(url, SECONDS))
    print(f"   {CLIENTS} clients, one request a second each: {len(taken)} requests, median {np.median(taken):.1f} ms, "
          f"p99 {np.percentile(taken, 99):.1f} ms, most {taken.max():.1f} ms")
