"""Where and when jobs run: policies, simulated and real.

From the ground up; a file imports only from its own line and those above it:

    portable, compilation             arithmetic that gives the same bits on every machine; how functions are compiled
    problem, contention               jobs, devices, times; how jobs slow each other down
    energy                            joules of jobs and of idle devices, and how they are known
    bounds, job_mixes, gavel          lower bounds (LP relaxation, matching); problems that are drawn
    problem_files                     problems that are read from CSV files
    state                             what a policy sees (State, Predict) and answers (Start, Restart, Wait)
    policies/                         queues, colocation, greedy, matching, baselines
      hybrid/                         estimator, planner, late_binding, local_search, stragglers; policy
      registry                        every policy by name
    simulation/                       events; compiled (compiled_loop): the same schedules, faster; metrics, trace
    durations                         how long notebooks should take
    runtime/                          workers (worker_process, output, ray_workers), journal, executor (a fixed list), service
                                      (an open list), probe, interference, tasks, local_site, run_record, jobs_file
      engine/                         the engine of both: slots, view, priorities, plan, observer
    api                               a problem in, a schedule and its figures out
"""
