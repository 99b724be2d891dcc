"""What a user asks of a network or an operator.

``query`` (a network and how it runs), ``advise`` and ``advise_operator`` (each device's answer), ``suggestions`` (what to
change), ``advise_text`` (all of it in words), ``snippets`` (programs that run it so).
"""
