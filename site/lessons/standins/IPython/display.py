"""What a cell displays, as a list."""

shown: list[object] = []


def display(*objects: object) -> None:
    shown.extend(objects)
