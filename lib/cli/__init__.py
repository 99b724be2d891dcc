"""The command line, ``python -m lib <verb>``: one file per group of verbs, each verb a thin call into the library."""
