"""The dashboard: projects, configurations, runs and agents in a database, a REST API, and pages that follow them live."""
