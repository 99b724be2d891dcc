"""Where and when jobs run: policies, simulated and real.

From the ground up:

    problem, problem_files     jobs, devices and times; read from CSV files
    state                      what a policy sees (State, Predict) and answers (Start, Restart, Wait)
    baselines, hybrid, gangs   the policies; jobs on several devices; policies: all of them by name
    estimates                  what hybrid learns from finished jobs
    bounds, assignment         lower bounds; jobs assigned to devices (LP rounding, moves and swaps)
    loop, simulate             the event loop, and its simulated backend
    run/                       its real backends: worker processes, Ray; the queue table; the verb run-jobs
    expected                   seconds of a job here: earlier runs, a budget, a model, a probe, a guess
    metrics, energy, risk      figures of a schedule; joules; how likely deadlines are kept
    answers                    the verb schedule; trace, gantt: a schedule as a trace and as a chart
    scenarios, job_mixes       the job mixes of params/scenarios.yaml; jobs drawn from them
    experiments                policies compared on job mixes

    from lib.schedule.policies import policy_for
    from lib.schedule.simulate import simulate

    outcome = simulate(problem, policy_for("hybrid"))
"""
