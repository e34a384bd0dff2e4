"""What a user did or asked for that can't be done. Front ends print it in one line, with no traceback."""


class Mistake(Exception):
    """The message says what is wrong, where, and what to do."""
