#!/usr/bin/env python3
"""Trains on CIFAR-10 in PyTorch with the network and the method of models/examples/quick94.cpp, to compare the times.

usage: quick94_torch.py --data cifar-10-batches-bin [--epochs 12] [--steps N] [--seed 0] [--threads N]
                        [--precision fp32|bf16]

Prints a line per epoch, and at the end the test accuracy with one and with six views of each image. --steps ends the
training early. bf16 is PyTorch's autocast. The script first starts itself again in the environment in which PyTorch is
fastest on a CPU. The memory layout is channels_last, which is faster than contiguous. Tracing does not make this
network faster. The values of the network have the names of quick94's model file.

Differences from quick94: the random numbers are those of PyTorch. Values that do not change have no gradients, also the
bias of the first layer after its last epoch.
"""
import argparse, os, statistics, sys, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from layers import torch_environment

BATCH, MOMENTUM = 1024, 0.85
RATE = 11.5 / (1 + 1 / (1 - MOMENTUM))  # for the mean loss of a mini-batch; see quick94.cpp
DECAY = 0.0153 / 11.5
BIAS_RATE = 64  # factor of the learning rate of batch norm's biases
LOOKAHEAD = 0.95 ** 5
PAD = 2  # mirrored pixels on each side of a stored image, and the largest translation
MEAN, DEVIATION = torch.tensor([.4914, .4822, .4465]), torch.tensor([.2470, .2435, .2616])


class Block(nn.Module):
    def __init__(self, c, k):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(c, k, 3, padding=1, bias=False), nn.BatchNorm2d(k, eps=1e-12, momentum=0.4)
        self.conv2, self.norm2 = nn.Conv2d(k, k, 3, padding=1, bias=False), nn.BatchNorm2d(k, eps=1e-12, momentum=0.4)

    def forward(self, x):
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class Quick94(nn.Module):
    def __init__(self):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.block1, self.block2, self.block3 = Block(24, 64), Block(64, 256), Block(256, 256)
        self.fc = nn.Linear(256, 10, bias=False)
        for name, value in self.named_parameters():
            if name == "whiten.weight" or "norm" in name and "weight" in name:
                value.requires_grad_(False)
            elif "weight" in name:
                nn.init.normal_(value, std=(3 * value[0].numel()) ** -0.5)
            if "conv" in name:
                nn.init.dirac_(value.data[:value.shape[1]])  # these filters copy their input
        nn.init.zeros_(self.whiten.bias)

    def forward(self, x):
        x = self.block3(self.block2(self.block1(F.gelu(self.whiten(x)))))
        with torch.autocast("cpu", enabled=False):  # like ringgrad, computes the scores in fp32
            return self.fc(F.max_pool2d(x, 3).flatten(1).float()) / 9


def whitening_filters(images):
    """Returns 24 filters that whiten 2 x 2 patches of these images; see initialise() in quick94.cpp."""
    patches = F.unfold(images.double(), 2)  # [n 12 31*31]
    values, vectors = torch.linalg.eigh(sum(p @ p.T for p in patches) / (patches.shape[0] * patches.shape[2]))
    filters = (vectors / (values + 5e-4).sqrt()).T.reshape(12, 3, 2, 2)
    return torch.cat([filters, -filters]).float()


def load(folder, *names):
    """Returns padded images, u8 [n 36 36 3], and their labels."""
    records = np.concatenate([np.fromfile(f"{folder}/{name}.bin", np.uint8).reshape(-1, 3073) for name in names])
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    images = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)), "reflect")
    return torch.from_numpy(images), torch.from_numpy(records[:, 0].astype(np.int64))


def windows(images, shift_y, shift_x, flip):
    """Returns normalised views [n 3 32 32] of padded images. The shifts and flips are tensors of n or 1 elements."""
    pixels, n = torch.arange(32), torch.arange(len(images))
    rows = PAD + shift_y[:, None] + pixels
    columns = PAD + shift_x[:, None] + torch.where(flip[:, None], 31 - pixels, pixels)
    x = images[n[:, None, None], rows[:, :, None], columns[:, None, :]]
    return ((x.float() / 255 - MEAN) / DEVIATION).permute(0, 3, 1, 2)


def rate_at(progress):
    """Returns the learning rate after this fraction of the training."""
    return RATE * (0.2 + 0.8 * progress / 0.23 if progress < 0.23 else 0.07 + 0.93 * (1 - progress) / (1 - 0.23))


def accuracy(net, images, labels, views):
    """Returns the accuracy in percent of the mean scores of the views (shift, flip, weight)."""
    right = 0
    for x, y in zip(images.split(250), labels.split(250)):
        scores = sum(weight * net(windows(x, torch.tensor([shift]), torch.tensor([shift]), torch.tensor([flip])))
                     for shift, flip, weight in views)
        right += (scores.argmax(1) == y).sum().item()
    return 100 * right / len(labels)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--data", required=True)
    p.add_argument("--epochs", type=int, default=12), p.add_argument("--steps", type=int)
    p.add_argument("--seed", type=int, default=0), p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    a = p.parse_args()
    if os.environ.get("GOMP_SPINCOUNT") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], torch_environment(a.threads))
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    images, labels = load(a.data, *(f"data_batch_{i}" for i in range(1, 6)))
    test_set = load(a.data, "test_batch")

    net = Quick94()
    none = torch.tensor([0])
    net.whiten.weight.data = whitening_filters(windows(images[:5000], none, none, none > 0))
    net = net.to(memory_format=torch.channels_last)
    trained = {name: value for name, value in net.named_parameters() if value.requires_grad}
    slow = {name: value.detach().clone() for name, value in trained.items()}  # weights of the lookahead
    sgd = torch.optim.SGD([{"params": [value], "factor": factor, "weight_decay": DECAY / factor}
                           for name, value in trained.items() for factor in [BIAS_RATE if "norm" in name else 1]],
                          lr=RATE, momentum=MOMENTUM, nesterov=True)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.precision == "bf16")
    print(f"PyTorch {torch.__version__}, {a.threads} threads, {a.precision}, seed {a.seed}, "
          f"{sum(value.numel() for value in net.parameters())} parameters", flush=True)

    batches = len(labels) // BATCH
    step, steps, begin = 0, a.steps or a.epochs * batches, time.perf_counter()
    flipped = torch.rand(len(labels)) < 0.5  # mirrored in odd epochs; the other images in even epochs
    for epoch in range(1, -(-steps // batches) + 1):
        net.whiten.bias.requires_grad_(epoch <= 3)
        losses, times, epoch_begin = [], [], time.perf_counter()
        for indices in torch.randperm(len(labels)).split(BATCH)[:min(batches, steps - step)]:
            start = time.perf_counter()
            flip = flipped[indices] == (epoch % 2 == 1)
            x = windows(images[indices], *torch.randint(-PAD, PAD + 1, (2, BATCH)), flip)
            for group in sgd.param_groups:
                group["lr"] = group["factor"] * rate_at(step / (a.epochs * batches))
            sgd.zero_grad(set_to_none=True)
            with autocast:
                loss = F.cross_entropy(net(x), labels[indices], label_smoothing=0.2)
            loss.backward()
            sgd.step()
            step += 1
            with torch.no_grad():
                for name, value in trained.items() if step % 5 == 0 or step == steps else ():
                    if step % 5 == 0:
                        slow[name].lerp_(value, 1 - LOOKAHEAD * (step / steps) ** 3)
                    value.copy_(slow[name])
            losses.append(loss.item())
            times.append(time.perf_counter() - start)
        print(f"epoch {epoch}: loss {statistics.mean(losses):.4f}, {time.perf_counter() - epoch_begin:.1f} s, "
              f"median {1e3 * statistics.median(times):.0f} ms per step", flush=True)

    end = time.perf_counter()
    six = [(shift, flip, 0.125 if shift else 0.25) for shift in (0, -1, 1) for flip in (False, True)]
    net.eval()
    with torch.inference_mode(), autocast:
        one_view, six_views = (accuracy(net, *test_set, views) for views in ([(0, False, 1)], six))
    print(f"test accuracy {one_view:.2f} %, with six views {six_views:.2f} %; training {(end - begin) / 60:.2f} "
          f"minutes, tests {(time.perf_counter() - end) / 60:.2f} minutes")


if __name__ == "__main__":
    main()
