"""What the course's modules need of IPython, in a Python that has none."""


def get_ipython() -> None:
    """There is no shell."""
