#!/usr/bin/env python3
"""Repeats a run of train_cifar in PyTorch and compares the loss of every step and the changes by the first step.

usage: compare_pytorch.py TRAIN_CIFAR DATA [--steps 20] [--batch 256] [--option=...]

Needs a Python with torch and numpy. DATA is the folder of CIFAR-10 binary files. train_cifar writes its initial model
(--steps 0) and trains from it without augmentation in file order. PyTorch does the same from the same file, with
torch.nn modules of the same names and SGD with the same settings, in float32. Unknown arguments go to train_cifar.

Losses: the exit status is 1 if the relative difference of a loss exceeds 3e-4, or that of the first loss 1e-6. First
change of each tensor: a rounding decides on which side of zero a few activations are, and with that whether their
gradient exists. So in float32, PyTorch differs from itself in another memory layout. This script therefore compares our
change and PyTorch's changes in both layouts with PyTorch in float64. The exit status is 1 if our difference exceeds
1e-4 and the larger one of PyTorch. It skips the biases before batch norm, whose true gradient is zero.
"""
import argparse, json, os, subprocess, sys, tempfile
import numpy as np
import torch
import torch.nn.functional as F
from pytorch_nets import CifarNet, load_safetensors


def load_cifar(folder):
    records = np.concatenate([np.fromfile(f"{folder}/data_batch_{i}.bin", np.uint8).reshape(-1, 3073)
                              for i in range(1, 6)])
    mean = torch.tensor([.4914, .4822, .4465]).view(1, 3, 1, 1)
    std = torch.tensor([.2470, .2435, .2616]).view(1, 3, 1, 1)
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    return lambda a, b: ((torch.from_numpy(records[a:b, 1:].reshape(-1, 3, 32, 32).astype(np.float32)) / 255 - mean) / std,
                         labels[a:b])


def gradients(state, data, dtype, layout):
    net = CifarNet(state)
    net.load_state_dict(state)
    net = net.to(dtype).to(memory_format=layout)
    F.cross_entropy(net(data[0].to(dtype).contiguous(memory_format=layout)), data[1]).backward()
    return {name: p.grad.double() for name, p in net.named_parameters()}


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("train_cifar"), p.add_argument("data")
    p.add_argument("--steps", type=int, default=20), p.add_argument("--batch", type=int, default=256)
    a, options = p.parse_known_args()
    temporary = tempfile.TemporaryDirectory(prefix="ringgrad-")  # removed at the end
    runs = temporary.name

    def ours(name, *more):
        subprocess.run([os.path.abspath(a.train_cifar), f"--data={a.data}", f"--runs={runs}", f"--run-name={name}",
                        f"--batch-size={a.batch}", "--augment=none", "--shuffle=never", *options, *more],
                       check=True, stdout=subprocess.DEVNULL)
        return f"{runs}/{name}"

    start = ours("start", "--steps=0") + "/model.safetensors"
    initial = load_safetensors(start)
    batch = load_cifar(a.data)

    def theirs(lr, steps):
        net = CifarNet(initial)
        net.load_state_dict(initial)
        sgd = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=1e-10)
        losses = []
        for i in range(steps):
            x, y = batch(i * a.batch, (i + 1) * a.batch)
            loss = F.cross_entropy(net(x), y)
            sgd.zero_grad(), loss.backward(), sgd.step()
            losses.append(loss.item())
        return losses

    bad = False
    run = ours("losses", f"--init={start}", "--lr=0.001", f"--steps={a.steps}")
    ours_losses = [x["loss"] for x in map(json.loads, open(run + "/metrics.jsonl")) if "step" in x]
    theirs_losses = theirs(0.001, a.steps)
    relative = [abs(x - y) / y for x, y in zip(ours_losses, theirs_losses)]
    bad |= len(ours_losses) != a.steps or relative[0] > 1e-6 or max(relative) > 3e-4
    print(f"losses of {a.steps} steps: first {relative[0]:.1e}, largest difference {max(relative):.1e} (relative)")

    one = load_safetensors(ours("one", f"--init={start}", "--lr=0.1", "--steps=1") + "/model.safetensors")
    exact = gradients(initial, batch(0, a.batch), torch.float64, torch.contiguous_format)
    peers = [gradients(initial, batch(0, a.batch), torch.float32, layout)
             for layout in (torch.contiguous_format, torch.channels_last)]
    print("change by the first step, difference from float64 (relative norm): ours, PyTorch NCHW, PyTorch NHWC")
    for name, wanted in exact.items():
        if name.endswith("conv.bias"):
            continue
        changes = [(initial[name].double() - one[name].double()) / 0.1] + [p[name] for p in peers]
        errors = [((g - wanted).norm() / wanted.norm()).item() for g in changes]
        fails = errors[0] > max(1e-4, *errors[1:])
        bad |= fails
        print(f"  {name:22s}", *(f"{e:.1e}" for e in errors), "  <--" if fails else "")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
