"""The networks of train_cifar as PyTorch modules, and load(), which reads a network from a file. Needs torch, and for
MobileNets torchvision, whose modules they are.

    net = load("runs/NAME/model.safetensors").eval()

The modules take normalised images [n c h w] in float32, and return the scores of the classes. The names and shapes of
the tensors in the file determine the module. The metadata "classes" and "normalise" hold the names of the classes, and
the mean and deviation of the images' bytes / 255.
"""
import json, struct
import torch
import torch.nn as nn
import torch.nn.functional as F


def read_safetensors(path):
    """Returns the tensors of a file by name, and its metadata."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = bytearray(f.read())
    types = {"F32": torch.float32, "BF16": torch.bfloat16, "I32": torch.int32, "I64": torch.int64}
    metadata = header.pop("__metadata__")
    return {name: torch.frombuffer(data[slice(*t["data_offsets"])], dtype=types[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()}, metadata


class Layer(nn.Module):
    def __init__(self, c, k):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(c, k, 3, padding=1), nn.BatchNorm2d(k)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)), inplace=True)


class CifarNet(nn.Module):
    def __init__(self, state):
        super().__init__()
        depth = sum(name.startswith("block1.") and name.endswith(".conv.bias") for name in state)
        width, c = state["block1.0.conv.weight"].shape[:2]
        for b in range(3):
            layers = []
            for _ in range(depth):
                layers.append(Layer(c, width << b))
                c = width << b
            setattr(self, f"block{b + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(c, state["fc.bias"].shape[0])

    def forward(self, x):
        x = F.max_pool2d(self.block1(x), 2)
        x = F.max_pool2d(self.block2(x), 2)
        return self.fc(self.block3(x).mean((2, 3)))


def conv(state, name, stride=1):
    k, c, size, _ = state[name + ".weight"].shape
    return nn.Conv2d(c, k, size, stride, size // 2, bias=False)


def norm(state, name):
    return nn.BatchNorm2d(state[name + ".weight"].shape[0])


class Block(nn.Module):
    """A residual block. In wide networks, batch norm and ReLU come before each convolution, otherwise after it."""

    def __init__(self, state, name, stride, wide):
        super().__init__()
        self.count, self.wide = (3 if name + "conv3.weight" in state else 2), wide
        for i in range(1, self.count + 1):
            setattr(self, f"conv{i}", conv(state, f"{name}conv{i}", stride if i == self.count - 1 else 1))
            setattr(self, f"bn{i}", norm(state, f"{name}bn{i}"))
        self.downsample = nn.Sequential()
        if name + "downsample.0.weight" in state:
            shortcut = conv(state, name + "downsample.0", stride)
            self.downsample = nn.Sequential(shortcut, *([] if wide else [norm(state, name + "downsample.1")]))

    def forward(self, x):
        if self.wide:
            y = F.relu(self.bn1(x), inplace=True)
            return self.conv2(F.relu(self.bn2(self.conv1(y)), inplace=True)) + self.downsample(y if len(self.downsample) else x)
        y = x
        for i in range(1, self.count + 1):
            conv, bn = getattr(self, f"conv{i}"), getattr(self, f"bn{i}")
            y = F.relu(bn(conv(y)), inplace=True) if i < self.count else bn(conv(y))
        return F.relu(y + self.downsample(x), inplace=True)


class ResNet(nn.Module):
    """resnet18, resnet20, resnet50 and wrn16-4. Tensors have the names that torchvision gives them in its ResNets."""

    def __init__(self, state):
        super().__init__()
        self.imagenet = state["conv1.weight"].shape[-1] == 7  # otherwise the stem for small images
        self.conv1 = conv(state, "conv1", 2 if self.imagenet else 1)
        self.bn1 = norm(state, "bn1")
        self.wide = state["bn1.weight"].shape != state["conv1.weight"].shape[:1]
        self.stages = 0
        while f"layer{self.stages + 1}.0.conv1.weight" in state:
            self.stages, blocks = self.stages + 1, []
            while f"layer{self.stages}.{len(blocks)}.conv1.weight" in state:
                stride = 2 if self.stages > 1 and not blocks else 1
                blocks.append(Block(state, f"layer{self.stages}.{len(blocks)}.", stride, self.wide))
            setattr(self, f"layer{self.stages}", nn.Sequential(*blocks))
        self.fc = nn.Linear(*reversed(state["fc.weight"].shape))

    def forward(self, x):
        x = self.conv1(x) if self.wide else F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.imagenet:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in range(1, self.stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc((F.relu(self.bn1(x)) if self.wide else x).mean((2, 3)))


def mobilenet(metadata):
    """Returns the module of torchvision that the metadata of a file describes, for images with three channels. For
    small images, the first two strides become 1."""
    import torchvision
    options, image, classes = (json.loads(metadata[key]) for key in ("network", "image", "classes"))
    net = getattr(torchvision.models, options["name"])(num_classes=len(classes), width_mult=options["width-mult"],
                                                       dropout=options["dropout"])
    if min(image[:2]) <= 64:
        strided = [module for module in net.modules() if isinstance(module, nn.Conv2d) and module.stride == (2, 2)]
        for module in strided[:2]:
            module.stride = (1, 1)
    return net


def network(state, metadata):
    """Returns the module with tensors of these names and shapes, from a file with these metadata."""
    if "features.0.0.weight" in state:
        return mobilenet(metadata)
    return CifarNet(state) if "block1.0.conv.weight" in state else ResNet(state)


def load(path):
    """Returns the network of a file, with its values."""
    state, metadata = read_safetensors(path)
    net = network(state, metadata)
    net.load_state_dict(state)
    return net
