#!/usr/bin/env python3
"""Compares the residual networks with those of torchvision: scores, losses of a training, and files in both directions.

usage: compare_resnet.py BUILD [--nets resnet18,resnet18-cifar,...] [--steps 20] [--precision fp32-strict|fp32]

Needs a Python with torch, torchvision and numpy. For each network, torchvision's initial values (with random running
statistics) are saved as safetensors, and train_cifar loads them by --init. Then the scores of both are compared, and
the losses of the steps of a training with SGD, without augmentation, on random images, all of them in each mini-batch.
The module then loads the trained model strictly, and the scores are compared again.

The exit status is 1 if scores differ by more than 1e-5 of the largest one, or if a loss differs from that of PyTorch in
float64 by more than 3e-4 (relative) and than those of PyTorch in float32, in both memory layouts. A rounding decides on
which side of zero a few activations are, so float32 trainings differ from each other by about as much.
torchvision has no resnet20 and wrn16-4, so this script defines them, with torchvision's BasicBlock in resnet20.
"""
import argparse, json, pathlib, struct, subprocess, sys, tempfile, zlib
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

CLASSES = 3


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


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    metadata = header.pop("__metadata__", {})
    types = {"F32": np.float32, "I64": np.int64}
    return {name: torch.from_numpy(np.frombuffer(data[slice(*t["data_offsets"])], types[t["dtype"]])
                                   .reshape(t["shape"]).copy()) for name, t in header.items()}, metadata


def write_png(path, pixels):  # [h w 3], u8
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def per_class(side):
    """Returns the number of images of each class. Batch norm amplifies roundings too much unless it has some hundred
    values per channel."""
    return 16 if side <= 64 else 4


class Cifar(nn.Module):
    """The networks for small images, with torchvision's names."""

    def __init__(self, block, blocks, stem, widths):
        super().__init__()
        self.conv1, channels = nn.Conv2d(3, stem, 3, padding=1, bias=False), stem
        self.bn1 = nn.BatchNorm2d(widths[-1] if block is Wide else stem)
        for stage, width in enumerate(widths):
            layers = []
            for i in range(blocks):
                layers.append(block(channels, width, 2 if stage and not i else 1))
                channels = width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc, self.wide = nn.Linear(channels, CLASSES), block is Wide

    def forward(self, x):
        x = self.conv1(x) if self.wide else F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc((F.relu(self.bn1(x)) if self.wide else x).mean((2, 3)))


class Wide(nn.Module):
    """A block of a wide residual network, as in the authors' code."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False))

    def forward(self, x):
        y = F.relu(self.bn1(x))
        z = self.conv2(F.relu(self.bn2(self.conv1(y))))
        return z + (self.downsample(y) if hasattr(self, "downsample") else x)


def basic(channels, width, stride):
    shortcut = None
    if stride != 1 or channels != width:
        shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
    return torchvision.models.resnet.BasicBlock(channels, width, stride, shortcut)


def resnet18_cifar():
    net = torchvision.models.resnet18(num_classes=CLASSES)
    net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return net


NETS = {  # name: (module, --net and its options, sides of the images)
    "resnet20": (lambda: Cifar(basic, 3, 16, [16, 32, 64]), ["--net", "resnet20"], (32, 45)),
    "wrn16-4": (lambda: Cifar(Wide, 2, 16, [64, 128, 256]), ["--net", "wrn16-4"], (32,)),
    "resnet18-cifar": (resnet18_cifar, ["--net", "resnet18"], (32,)),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=CLASSES),
                 ["--net", "resnet18", "--stem", "imagenet"], (64, 224)),
    "resnet50": (lambda: torchvision.models.resnet50(num_classes=CLASSES), ["--net", "resnet50"], (97, 224)),
}


def randomise(net):
    """Gives all batch norms values as after a training."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1), nn.init.normal_(module.bias, 0, 0.1)
            nn.init.normal_(module.running_mean, 0, 0.1), nn.init.uniform_(module.running_var, 0.5, 2)


class Comparison:
    def __init__(self, build, folder, precision):
        self.build, self.folder = pathlib.Path(build).resolve(), pathlib.Path(folder)
        self.precision = precision

    def train(self, name, *options):
        subprocess.run([str(self.build / "train_cifar"), "--runs", str(self.folder), "--run-name", name, "--augment",
                        "none", "--shuffle", "never", "--l2", "0", "--precision", self.precision,
                        *map(str, options)], check=True, stdout=subprocess.DEVNULL)
        return self.folder / name

    def images(self, side):
        """Writes random images for training and test. Returns those for training, with their labels."""
        random, pixels, labels = np.random.default_rng(side), [], []
        for part in ("train", "test"):
            for label in range(CLASSES):
                for i in range(per_class(side)):
                    small = random.integers(0, 256, (9, 9, 3))
                    large = np.kron(small, np.ones((side // 9 + 1,) * 2 + (1,)))[:side, :side].astype(np.uint8)
                    write_png(self.folder / f"images-{side}" / part / f"class{label}" / f"{i}.png", large)
                    if part == "train":
                        pixels.append(large), labels.append(label)
        return torch.from_numpy(np.stack(pixels)), torch.tensor(labels)

    def scores(self, run, x):
        write_safetensors(self.folder / "x.safetensors", {"x": x.permute(0, 2, 3, 1)})
        subprocess.run([str(self.build / "scores"), str(run), str(self.folder / "x.safetensors"),
                        str(self.folder / "scores.safetensors"), "--precision", self.precision], check=True)
        return read_safetensors(self.folder / "scores.safetensors")[0]["0"]

    def score_difference(self, net, run, x):
        net.eval()
        with torch.no_grad():
            wanted = net(x)
        return ((self.scores(run, x) - wanted).abs().max() / wanted.abs().max()).item()

    def compare(self, name, side, steps):
        """Returns relative differences: of the scores before and after the training, and the largest one of the losses
        from those in float64, for ringgrad and for PyTorch in both layouts."""
        make, options, _ = NETS[name]
        torch.manual_seed(1)
        net = make()
        randomise(net)
        pixels, labels = self.images(side)
        initial, run = self.folder / "initial.safetensors", f"{name}-{side}"
        write_safetensors(initial, net.state_dict())
        options = [*options, "--data", self.folder / f"images-{side}", "--init", initial, "--batch-size", len(labels)]
        start = self.train(f"{run}-start", "--steps", 0, *options)
        normalise = json.loads(read_safetensors(start / "model.safetensors")[1]["normalise"])
        mean, deviation = (torch.tensor(normalise[key]) for key in ("mean", "deviation"))
        x = ((pixels / 255 - mean) / deviation).permute(0, 3, 1, 2).contiguous()
        before = self.score_difference(net, start, x)

        trained = self.train(run, "--steps", steps, "--lr", 0.001, "--schedule", "constant", *options)
        ours = [x["loss"] for x in map(json.loads, open(trained / "metrics.jsonl")) if "step" in x]
        assert len(ours) == steps, "expected a loss of each step"
        state = {key: value.clone() for key, value in net.state_dict().items()}
        exact = losses(make, state, x, labels, steps, torch.float64)
        peers = [losses(make, state, x, labels, steps, torch.float32, layout)
                 for layout in (torch.contiguous_format, torch.channels_last)]
        differences = [max(abs(a - b) / b for a, b in zip(each, exact)) for each in (ours, *peers)]
        net = make()
        net.load_state_dict(read_safetensors(trained / "model.safetensors")[0], strict=True)
        return before, self.score_difference(net, trained, x), differences


def losses(make, state, x, labels, steps, dtype, layout=torch.contiguous_format):
    net = make()
    net.load_state_dict(state)
    net, x = net.to(dtype).to(memory_format=layout).train(), x.to(dtype).contiguous(memory_format=layout)
    sgd, result = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9), []
    for _ in range(steps):
        loss = F.cross_entropy(net(x), labels)
        sgd.zero_grad(), loss.backward(), sgd.step()
        result.append(loss.item())
    return result


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("build"), p.add_argument("--nets", default=",".join(NETS)), p.add_argument("--steps", type=int, default=20)
    p.add_argument("--precision", choices=["fp32", "fp32-strict"], default="fp32-strict")
    a = p.parse_args()
    bad = False
    print("scores before and after the training; losses from those in float64: ours, PyTorch NCHW, PyTorch NHWC")
    with tempfile.TemporaryDirectory(prefix="ringgrad-") as folder:
        comparison = Comparison(a.build, folder, a.precision)
        for name in a.nets.split(","):
            for side in NETS[name][2]:
                before, after, (loss, *peers) = comparison.compare(name, side, a.steps)
                fails = not (max(before, after) <= 1e-5 and loss <= max(3e-4, *peers))  # also if one is NaN
                bad |= fails
                print(f"  {name:15s} {side:3d}  {before:.1e} {after:.1e}  {loss:.1e}", *(f"{p:.1e}" for p in peers),
                      "  <--" if fails else "", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
