#!/usr/bin/env python3
"""Measures images per second of training steps or predictions in PyTorch for vs_pytorch.sh. Prints a line of key=value.

usage: torch_train.py [--mode train|infer] [--layout nhwc|nchw] [--traced|--frozen] [--batch 256] [--threads N]
                      [--seconds 5] [--precision fp32|bf16] [--device cpu|cuda] [--compile]
                      [--net cifar|resnet18|...] [--size 32] [--build FOLDER]

digits-angles is the two-headed network of models/nets/digits_net.h. train_cifar in --build (default: build) makes the
other networks, which are then modules of pytorch_nets.py. Like bench_train it uses random data in memory, and a
training step is forward, cross-entropy, backward and SGD with momentum. nhwc is PyTorch's channels_last, and nchw its
contiguous layout. --traced trains the network as torch.jit.trace() made it. --frozen traces it and lets PyTorch
optimise it for prediction (with folded batch norm). --compile is torch.compile with CUDA graphs, and bf16 is PyTorch's
autocast. After a warm-up, each step is timed: images_per_s is from the median, and images_per_s_max from the fastest
step.
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from pytorch_nets import load


def convolution(out, kernel, channels, stride=1):
    return nn.Sequential(nn.Conv2d(channels, out, kernel, stride, kernel // 2), nn.BatchNorm2d(out))


class DigitsAngles(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = convolution(16, 5, 1)
        self.branch = nn.Sequential(convolution(32, 3, 16, 2), nn.ReLU(inplace=True), convolution(32, 3, 32))
        self.skip = convolution(32, 1, 16, 2)
        self.classify, self.degrees = nn.Linear(14 * 14 * 32, 10), nn.Linear(14 * 14 * 32, 1)

    def forward(self, x):
        y = torch.relu(self.stem(x))
        z = torch.relu(self.branch(y) + self.skip(y)).flatten(1)
        return self.classify(z), self.degrees(z)


def network(name, size, build):
    """Returns the network of this name, with the initial values that train_cifar gives it."""
    if name == "digits-angles":
        return DigitsAngles()
    stem = ["--stem", "imagenet"] if name == "resnet18" and size > 64 else []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([f"{build}/train_cifar", "--net", name, *stem, "--size", str(size), "--steps", "0", "--runs",
                        folder, "--run-name", "net"], check=True, stdout=subprocess.DEVNULL)
        return load(f"{folder}/net/model.safetensors")


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--mode", choices=["train", "infer"], default="train")
    p.add_argument("--layout", choices=["nhwc", "nchw"], default="nhwc")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--traced", action="store_true")
    p.add_argument("--frozen", action="store_true")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--net", choices=["cifar", "digits-angles", "resnet18", "resnet20", "resnet50", "wrn16-4",
                                     "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"], default="cifar")
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--build", default="build")
    a = p.parse_args()
    if a.frozen and a.mode == "train" or a.traced and a.mode == "infer":
        p.error("--frozen is for prediction, and --traced for training")
    torch.manual_seed(0)
    if a.threads:
        torch.set_num_threads(a.threads)

    layout = torch.channels_last if a.layout == "nhwc" else torch.contiguous_format
    net = network(a.net, a.size, a.build).to(a.device, memory_format=layout).train(a.mode == "train")
    channels = 1 if a.net == "digits-angles" else 3
    x = torch.randn(a.batch, channels, a.size, a.size, device=a.device).contiguous(memory_format=layout)
    labels = torch.randint(0, 3, (a.batch,), device=a.device)
    angles = torch.randn(a.batch, 1, device=a.device)
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    cross_entropy, squared = nn.CrossEntropyLoss(), nn.MSELoss()
    autocast = torch.autocast(a.device, dtype=torch.bfloat16, enabled=a.precision == "bf16")

    def train():
        sgd.zero_grad(set_to_none=True)
        with autocast:
            out = net(x)
            loss = cross_entropy(out[0], labels) + squared(out[1], angles) if channels == 1 else cross_entropy(out, labels)
        loss.backward()
        sgd.step()

    def infer():
        with torch.no_grad(), autocast:
            return net(x)

    if a.traced:
        with autocast:
            net = torch.jit.trace(net, x, check_trace=False)
    if a.frozen:
        with torch.no_grad(), autocast:
            net = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(net, x, check_trace=False)))
    if a.compile:
        net = torch.compile(net, mode="max-autotune")
    step = train if a.mode == "train" else infer
    wait = torch.cuda.synchronize if a.device == "cuda" else lambda: None
    begin = time.perf_counter()
    while time.perf_counter() - begin < 1:  # a warm-up allocates memory and compiles kernels
        for _ in range(3):
            step()
        wait()
    times, begin = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < a.seconds:
        start = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - start)
    median, best = statistics.median(times), min(times)
    print(f"net={a.net} mode={a.mode} batch={a.batch} threads={torch.get_num_threads()} precision={a.precision}"
          f" layout={a.layout} traced={int(a.traced)} frozen={int(a.frozen)} compile={int(a.compile)} device={a.device} torch={torch.__version__}"
          f" images_per_s={a.batch / median:.1f} images_per_s_max={a.batch / best:.1f}"
          f" ms_per_iter={median * 1e3:.3f} ms_per_iter_min={best * 1e3:.3f}")


main()
