"""Where and when jobs run: policies, simulated and real.

From the ground up; a file imports only from its own line and those above it:

    portable                          arithmetic with the same bits on every machine; compilation
    problem                           jobs, devices, times
    energy                            joules of jobs and of idle devices, with their source
    bounds, job_mixes, gavel          lower bounds (LP relaxation, matching); drawn problems
    problem_files                     problems read from CSV files
    state                             what a policy sees (State, Predict) and answers (Start, Restart, Wait)
    policies/                         queues, host_cores, greedy, baselines
      fair                            shares of users
      hybrid/                         estimator, planner, late_binding, local_search, stragglers; policy
      gangs                           jobs on several devices at once
      registry                        every policy by name
    simulation/                       events; compiled: the same schedules, faster; metrics, trace
    moldable, risk                    how many devices a job gets; plans where times and memory are uncertain
    durations                         how long notebooks should take
    runtime/                          workers (worker_process, output, ray_workers), journal, executor (a fixed list), service
                                      (an open list), tasks, local_site, run_record, jobs_file
      engine/                         the engine of both: view, slots, plan, engine
    api                               a problem in, a schedule and its figures out
    gantt                             a schedule as a chart
    scenarios, experiments            step times and job mixes of params/scenarios.yaml; policies compared on them
"""
