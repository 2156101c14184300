"""What the user's code reads from outside itself, and their code changes later.

Called as it stands, a function takes a variable of its module, or an attribute of an object that one holds,
as it is at each call. Traced, it keeps what there was at the first.
"""
