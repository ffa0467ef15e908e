#!/usr/bin/env python3
"""Compares the networks of train_cifar with PyTorch: probabilities, gradients, losses of a training, and files in both
directions.

usage: compare_pytorch.py BUILD [--nets cifar,resnet20,...] [--steps 20] [--precision fp32-strict|fp32]

Needs a Python with torch and numpy. If it has torchvision too, resnet18 and resnet50 with the stem for large images are
torchvision's modules, and MobileNets are compared; all others are those of pytorch_nets.py. Each network gets random
values, which train_cifar loads by --init. Then the probabilities of both are compared, and the gradients and losses of
a training with SGD, without augmentation, on random images, all of them in each mini-batch. The module then loads the
trained model strictly, and the probabilities are compared again.

The exit status is 1 if probabilities differ by more than 1e-4, or if a loss or the gradient of a tensor (by its norm)
differs from that of PyTorch in float64 by more than 3e-4 (relative), and by more than twice as much as PyTorch in
float32 in one of the memory layouts. A rounding decides on which side of zero a few activations are, so trainings in
float32 differ from each other by about as much.
"""
import argparse, json, pathlib, struct, subprocess, sys, tempfile, zlib
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from pytorch_nets import network, read_safetensors

try:
    import torchvision
except ImportError:
    torchvision = None

CLASSES = 3
LARGE = 3e-4  # difference of a loss or a gradient
NETS = {  # name: --net and its options, sides of the images, name in torchvision
    "cifar": (["--net", "cifar"], (32,), None),
    "resnet20": (["--net", "resnet20"], (32, 45), None),
    "wrn16-4": (["--net", "wrn16-4"], (32,), None),
    "resnet18-cifar": (["--net", "resnet18"], (32,), None),
    "resnet18": (["--net", "resnet18", "--stem", "imagenet"], (64, 224), "resnet18"),
    "resnet50": (["--net", "resnet50"], (97, 224), "resnet50"),
    **{net: (["--net", net, "--dropout", "0"], (32, 97, 224), None)
       for net in ("mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large")},
    "mobilenet_v2-0.35": (["--net", "mobilenet_v2", "--width-mult", "0.35", "--dropout", "0"], (32,), None),
    "mobilenet_v3-0.75": (["--net", "mobilenet_v3_large", "--width-mult", "0.75", "--dropout", "0"], (96,), None),
}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, t in sorted(tensors.items(), key=lambda item: item[1].dtype != torch.int64):  # i64 first, for alignment
        raw = t.contiguous().numpy().tobytes()
        header[name] = {"dtype": "I64" if t.dtype == torch.int64 else "F32", "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_png(path, pixels):  # [h w 3], u8
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_images(folder, side):
    """Writes random images for training and test. Returns the pixels and the labels of those for training. Batch norm
    amplifies roundings too much unless it has some hundred values per channel, so more images are written if they are
    small."""
    random, pixels, labels = np.random.default_rng(side), [], []
    for part in ("train", "test"):
        for label in range(CLASSES):
            for i in range(16 if side <= 64 else 4):
                small = random.integers(0, 256, (9, 9, 3))
                large = np.kron(small, np.ones((side // 9 + 1,) * 2 + (1,)))[:side, :side].astype(np.uint8)
                write_png(folder / part / f"class{label}" / f"{i}.png", large)
                if part == "train":
                    pixels.append(large), labels.append(label)
    return np.stack(pixels), torch.tensor(labels)


def randomise(net, x):
    """Gives all batch norms random values, and running statistics of the size that those of x have."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1), nn.init.normal_(norm.bias, 0, 0.1)
        norm.momentum, norm.kept = 1, norm.momentum
    for module in net.modules():
        if isinstance(module, nn.Linear):  # those of MobileNets begin with scores that are nearly 0
            module.reset_parameters()
    with torch.no_grad():
        net.train()(x)
        for norm in norms:
            norm.momentum = norm.kept
            norm.running_mean += 0.1 * norm.running_var.sqrt() * torch.randn_like(norm.running_mean)
            norm.running_var *= 0.5 + 1.5 * torch.rand_like(norm.running_var)


def losses(make, state, x, labels, steps, dtype, layout=torch.contiguous_format):
    """Returns the losses of a training, and the gradients of its first step by name."""
    net = make()
    net.load_state_dict(state)
    net, x = net.to(dtype).to(memory_format=layout).train(), x.to(dtype).contiguous(memory_format=layout)
    sgd, result = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9), []
    for _ in range(steps):
        loss = F.cross_entropy(net(x), labels)
        sgd.zero_grad(), loss.backward(), sgd.step()
        result.append(loss.item())
        if len(result) == 1:
            gradients = {name: p.grad.double().clone() for name, p in net.named_parameters()}
    return result, gradients


def largest_difference(result, exact):
    """Returns the largest relative differences of two results of losses(): of a loss, and of a tensor's gradient. The
    gradient of a bias between two batch norms is 0, so that of a tensor counts as at least 3e-3 of all together."""
    least = 3e-3 * sum(g.norm() ** 2 for g in exact[1].values()) ** 0.5
    return (max(abs(a - b) / b for a, b in zip(result[0], exact[0], strict=True)),
            max(((result[1][name] - g).norm() / max(g.norm(), least)).item() for name, g in exact[1].items()))


def compare(build, folder, name, side, steps, precision):
    """Returns the largest difference of a probability from PyTorch before the training, the same after it, and a list
    of the largest relative differences of losses and gradients from those of PyTorch in float64: for ringgrad, and if
    these are large, for PyTorch in float32 in both layouts."""
    options, _, official = NETS[name]
    pixels, labels = write_images(folder / "images", side)
    options = [*options, "--data", folder / "images", "--batch-size", len(labels), "--augment", "none", "--shuffle",
               "never", "--l2", "0", "--precision", precision, "--runs", folder]

    def train(run, *more):
        subprocess.run(list(map(str, [build / "train_cifar", *options, "--run-name", run, *more])), check=True,
                       stdout=subprocess.DEVNULL)
        return folder / run / "model.safetensors"

    def make():
        if official and torchvision:
            return getattr(torchvision.models, official)(num_classes=CLASSES)
        return network(state, metadata)

    def difference(net, model):
        from ringgrad import Model
        ours = torch.tensor([result["scores"] for result in Model(model.parent).predict(pixels)])
        with torch.no_grad():
            return (ours - net.eval()(x).softmax(1)).abs().max().item()

    state, metadata = read_safetensors(train("first", "--steps", 0))
    normalise = json.loads(metadata["normalise"])
    mean, deviation = (torch.tensor(normalise[key]) for key in ("mean", "deviation"))
    x = ((torch.from_numpy(pixels) / 255 - mean) / deviation).permute(0, 3, 1, 2).contiguous()
    torch.manual_seed(1)
    net = make()
    randomise(net, x)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    write_safetensors(folder / "initial.safetensors", state)
    options += ["--init", folder / "initial.safetensors"]
    before = difference(net, train("start", "--steps", 0))

    stepped, _ = read_safetensors(train("stepped", "--steps", 1, "--lr", 8, "--schedule", "constant"))
    gradients = {name: (value.double() - stepped[name].double()) / 8 for name, value in state.items()}
    trained = train("trained", "--steps", steps, "--lr", 0.001, "--schedule", "constant")
    ours = [x["loss"] for x in map(json.loads, open(trained.parent / "metrics.jsonl")) if "step" in x]
    assert len(ours) == steps, "expected a loss of each step"
    exact = losses(make, state, x, labels, steps, torch.float64)
    differences = [largest_difference((ours, gradients), exact)]
    if not max(differences[0]) <= LARGE:
        for layout in (torch.contiguous_format, torch.channels_last):
            peer = losses(make, state, x, labels, steps, torch.float32, layout)
            differences.append(largest_difference(peer, exact))
    net = make()
    net.load_state_dict(read_safetensors(trained)[0], strict=True)
    return before, difference(net, trained), differences


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("build", type=pathlib.Path), p.add_argument("--nets", default=",".join(NETS))
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--precision", choices=["fp32", "fp32-strict"], default="fp32-strict")
    a = p.parse_args()
    sys.path.append(str(a.build))  # ringgrad.py
    bad = False
    print("probabilities before and after the training; losses and gradients: ours, and if one is "
          "large, PyTorch NCHW, PyTorch NHWC")
    for name in a.nets.split(","):
        if name.startswith("mobilenet") and not torchvision:
            print(f"  {name:18s} skipped: torchvision is not installed")
            continue
        for side in NETS[name][1]:
            with tempfile.TemporaryDirectory(prefix="ringgrad-") as folder:
                before, after, differences = compare(a.build.resolve(), pathlib.Path(folder), name, side, a.steps,
                                                     a.precision)
            fails = not (before <= 1e-4 and after <= 1e-4)
            for ours, *peers in zip(*differences):
                fails |= not ours <= max([LARGE, *(2 * peer for peer in peers)])  # also if one is NaN
            bad |= fails
            print(f"  {name:18s} {side:3d}  {before:.1e} {after:.1e}", *("  " + " ".join(f"{d:.1e}" for d in each) for each in
                  zip(*differences)), "  <--" if fails else "", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
