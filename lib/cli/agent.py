"""The verb of agents: ``agent``. Imports nothing heavy."""

import argparse

from lib.cli.options import a_path, add_verb, folder_name, option, whole


def _agent(options: argparse.Namespace) -> None:
    import signal

    from lib.dashboard.agents import agent, devices

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it leaves as when it is interrupted
    if options.parent:
        agent.end_with_parent(options.parent)
    server = agent.Client(options.server, agent.read_token(options.token_file))
    pairs = devices.devices_here(options.slots)
    if line := devices.narrowed(pairs):
        print(line, flush=True)
    agent.Agent(server, options.name or agent.default_name(), pairs).run()


def add(verbs) -> None:
    """Add the verb of agents."""
    add_verb(verbs, _agent, "agent", "join a dashboard with this machine's slots, and run what it places here",
             option("--server", "the dashboard, such as http://127.0.0.1:8000", required=True, metavar="URL"),
             option("--name", "of this agent (default: the host's name)", folder_name),
             option("--slots", "CPU slots of equal size (default: one a core, at most 16)", whole(1), 0),
             option("--token-file", "file with the token (default: $DASHBOARD_TOKEN, or data/dashboard/token)", a_path),
             option("--parent", "end when this process, which started it, is gone", whole(1, 2**31), metavar="PID"),
             epilog="It ends its workers when the server does not answer; their runs are tried again, from their checkpoints, "
                    "wherever the dashboard places them.")
