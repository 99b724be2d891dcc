"""The engine of real runs: slots with their workers, what a policy is shown of an open list of jobs, priorities, the loop."""
