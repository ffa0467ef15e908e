#!/usr/bin/env python3
"""Compares the values and gradients of ops, and the updates of optimizers, with PyTorch.

usage: compare_ops.py build/compare_ops

Needs a Python with torch. Without it, the script says so and exits with status 0. compare_ops (compare_ops.cpp) writes
each case to a file: inputs, results, gradients. This script computes the same in PyTorch, in float64, from the same
inputs. It prints two errors of each case: their root mean square (rms), relative to the rms of PyTorch's result, and
the largest one, relative to this rms or to the element itself, whichever is larger. The exit status is 1 if an error
exceeds its limit: 1e-5 and 1e-4 for float32, 8e-3 and 8e-2 for bf16. The limits of bf16 are those of kNarrow in
tests/op_cases.h: one rounding to bf16 has an error of up to 4e-3.

To cover another op, add a line to OPS (or OPTIMIZERS) and one to the table in compare_ops.cpp.
"""
import os, subprocess, sys, tempfile
from types import SimpleNamespace

try:
    import torch
    import torch.nn.functional as F
    from pytorch_nets import read_safetensors
except ImportError as error:
    print(f"compare_ops.py: nothing compared, because this Python has no torch: {error}")
    sys.exit(0)

LIMITS = {torch.float32: (1e-5, 1e-4), torch.bfloat16: (8e-3, 8e-2)}


def nchw(t):
    return t.permute(0, 3, 1, 2)


def nhwc(t):
    return t.permute(0, 2, 3, 1)


# t has the inputs of a case, and t.y, our result, in float64. a has the attributes of the case.
OPS = {
    "conv2d": lambda t, a: nhwc(F.conv2d(nchw(t.x), nchw(t.w), t.b, int(a.stride), int(a.padding),
                                         int(getattr(a, "dilation", 1)), int(getattr(a, "groups", 1)))),
    "linear": lambda t, a: F.linear(t.x, t.w, t.b),
    "max_pool2d": lambda t, a: nhwc(F.max_pool2d(nchw(t.x), (int(a.height), int(a.width)), int(a.stride),
                                                 int(a.padding))),
    "avg_pool2d": lambda t, a: nhwc(F.avg_pool2d(nchw(t.x), (int(a.height), int(a.width)), int(a.stride),
                                                 int(a.padding), count_include_pad=bool(a.count_pad))),
    "global_avg_pool": lambda t, a: t.x.mean((1, 2)),
    "batch_norm": lambda t, a: nhwc(F.batch_norm(nchw(t.x), None, None, t.gamma, t.beta, training=True)),
    "layer_norm": lambda t, a: F.layer_norm(t.x, t.gamma.shape, t.gamma, t.beta),
    "relu": lambda t, a: F.relu(t.x),
    "gelu": lambda t, a: F.gelu(t.x),
    "leaky_relu": lambda t, a: F.leaky_relu(t.x, a.slope),
    "silu": lambda t, a: F.silu(t.x),
    "sigmoid": lambda t, a: torch.sigmoid(t.x),
    "tanh": lambda t, a: torch.tanh(t.x),
    "add": lambda t, a: t.a + t.b,
    "sub": lambda t, a: t.a - t.b,
    "mul": lambda t, a: t.a * t.b,
    "concat": lambda t, a: torch.cat([t.a, t.b], -1),
    "sum": lambda t, a: t.x.sum(),
    "mean": lambda t, a: t.x.mean(),
    "scale": lambda t, a: t.x * a.factor,
    "dropout": lambda t, a: t.x * (t.y != 0) / (1 - a.probability),  # the same elements as ours become zero
    "cross_entropy": lambda t, a: F.cross_entropy(t.x, t.labels.long(), getattr(t, "weights", None),
                                                  label_smoothing=a.smoothing),
    "mse_loss": lambda t, a: F.mse_loss(t.x, t.target),
    "binary_cross_entropy": lambda t, a: F.binary_cross_entropy_with_logits(t.x, t.target),
}


class Muon(torch.optim.SGD):
    """Scales the filters to the norm sqrt(k), and orthogonalises the steps of SGD (Jordan, 2024)."""

    def __init__(self, groups, a):
        self.p, self.rate, self.filters = groups[0]["params"][0], groups[0]["lr"], int(a.filters)
        super().__init__([self.p], 1, a.momentum, nesterov=True)

    @torch.no_grad()
    def step(self):
        before = self.p.clone()
        super().step()
        x = (before - self.p).view(self.filters, -1)
        x /= x.norm() + 1e-7
        for _ in range(3):
            square = x @ x.T
            x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
        self.p.copy_(before * self.filters**0.5 / (before.norm() + 1e-7) - self.rate * x.view(-1))


OPTIMIZERS = {
    "SGD": lambda groups, a: torch.optim.SGD(groups, a.lr, a.momentum, nesterov=bool(a.nesterov)),
    "Adam": lambda groups, a: torch.optim.Adam(groups, a.lr),
    "AdamW": lambda groups, a: torch.optim.AdamW(groups, a.lr),
    "Muon": Muon,
}


def is_close(what, ours, wanted):
    """Prints the error of `ours`, and returns True if it is within the limits."""
    assert ours.shape == wanted.shape, f"{what}: expected the shape {tuple(wanted.shape)}, got {tuple(ours.shape)}"
    difference = ours.double() - wanted
    scale = wanted.square().mean().sqrt()
    rms = float(difference.square().mean().sqrt() / scale)
    largest = float((difference.abs() / torch.maximum(wanted.abs(), scale)).max())
    limits = LIMITS[ours.dtype]
    good = rms <= limits[0] and largest <= limits[1]
    print(f"{what:50} rms {rms:8.1e}  largest {largest:8.1e}{'' if good else '   TOO LARGE'}")
    return good


def compare_op(name, tensors, a, label):
    """Compares the result and the gradients of one case."""
    t = SimpleNamespace(**{key: value if value.dtype == torch.int32 else value.double()
                           for key, value in tensors.items() if not key.startswith("d ")})
    inputs = [key[2:] for key in tensors if key.startswith("d ")]
    for key in inputs:
        getattr(t, key).requires_grad_()
    y = OPS[name](t, a)
    y.backward(t.dy)
    good = is_close(label, tensors["y"], y.detach())
    for key in inputs:
        good &= is_close(f"  gradient of {key}", tensors[f"d {key}"], getattr(t, key).grad)
    return good


def compare_optimizer(name, tensors, a, label):
    """Compares the parameters after each step, and their average, if there is one."""
    def split(flat):
        return flat.double().split([int(a.biases), len(flat) - int(a.biases)])
    biases, filters = map(torch.nn.Parameter, split(tensors["start"]))
    groups = [{"params": [filters], "lr": 0.5 * a.lr, "weight_decay": a.weight_decay},
              {"params": [biases], "lr": a.lr, "weight_decay": a.weight_decay * a.decay_biases}]
    optimizer = OPTIMIZERS[name](groups, a)
    average, steps, averages = tensors["start"].double(), [], []
    for g in tensors["g"]:
        biases.grad, filters.grad = split(g)
        if a.max_norm:
            torch.nn.utils.clip_grad_norm_([biases, filters], a.max_norm)
        optimizer.step()
        steps.append(torch.cat([biases, filters]).detach().clone())
        keep = min(a.average, (1 + len(steps)) / (10 + len(steps)))
        average = keep * average + (1 - keep) * steps[-1]
        averages.append(average)
    good = is_close(f"{label}, {len(steps)} steps", tensors["p"], torch.stack(steps))
    if "average" in tensors:
        good &= is_close("  average", tensors["average"], torch.stack(averages))
    return good


def main():
    if len(sys.argv) != 2:
        sys.exit(f"compare_ops.py: expected the program compare_ops, got {len(sys.argv) - 1} arguments; "
                 "pass build/compare_ops")
    failed = seen = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], folder], check=True)
        for file in sorted(os.listdir(folder)):
            tensors, metadata = read_safetensors(os.path.join(folder, file))
            name = metadata.pop("op")
            metadata = {key: value for key, value in metadata.items() if not key.endswith(("checksum", "checksums"))}
            a = SimpleNamespace(**{key: float(value) for key, value in metadata.items()})
            label = " ".join([name] + [f"{key}={value}" for key, value in sorted(metadata.items())])
            if "weights" in tensors:
                label += " weights"
            if any(t.dtype == torch.bfloat16 for t in tensors.values()):
                label += " bf16"
            compare = compare_op if name in OPS else compare_optimizer
            failed += not compare(name, tensors, a, label)
            seen += 1
    print(f"{seen} cases compared with PyTorch {torch.__version__}, {failed} of them differ")
    return 1 if failed or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
