"""Smooth a loss curve by a moving average and subtract it."""

from types import SimpleNamespace

import torch

MODEL = dict(steps=500, window=20)
LAYOUT = dict()


def moving_average(curve, window):
    total = torch.cat((torch.zeros(1), curve.cumsum(0)))
    return (total[window:] - total[: -window - 1]) / window


def attempt(model, layout):
    curve = torch.linspace(4.0, 2.0, model.steps) + 0.1 * torch.randn(model.steps)
    smooth = moving_average(curve, model.window)
    return curve[model.window - 1 :] - smooth


if __name__ == "__main__":
    attempt(SimpleNamespace(**MODEL), SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "dp": 1} | LAYOUT))
