"""The dashboard: projects, configurations and runs in a database, a queue, a REST API and pages.

From the ground up::

    tables, database the rows, their states, and the connection to SQLite or PostgreSQL
    bodies           what requests bring, checked by pydantic
    configurations   the check of a configuration: a fine-tune, or a notebook with its parameters
    inventory        the devices of this machine
    predictions      how long a run takes on a device
    runner           places waiting runs on devices
    outputs          what a run has written: log, curves, files
    api, pages       the REST API; the pages
    access, app      the token; everything as one application
"""
