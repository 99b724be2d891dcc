"""What several verbs read from their options."""


def assignments(pairs: list[list[str]]) -> dict[str, str]:
    """Return ``-p NAME VALUE`` pairs as a mapping; the last of a name counts."""
    return dict(pairs)
