"""The command line, ``python -m lib <verb>``: a file a room, each verb a thin call into it."""
