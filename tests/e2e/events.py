# Tests the event files of tools/tensorboard.py with an independent reader (TFRecord frames with a bitwise CRC, protobuf
# by its wire format), and with TensorBoard if it is installed.
import json
import math
import pathlib
import signal
import struct
import sys
import time

import job

try:
    from tensorboard.backend.event_processing import event_accumulator
except ImportError:
    event_accumulator = None

SCRIPT = str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "tensorboard.py")


def masked_crc32c(content):
    crc = 0xffffffff
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(content):
    """Returns the contents of TFRecords, and checks their checksums."""
    while content:
        length, crc = struct.unpack("<QI", content[:12])
        record, (record_crc,) = content[12:12 + length], struct.unpack("<I", content[12 + length:16 + length])
        assert crc == masked_crc32c(content[:8]) and record_crc == masked_crc32c(record)
        yield record
        content = content[16 + length:]


def event(record):
    found = {number: (kind, value) for number, kind, value in job.protobuf(record)}
    assert found[1][0] == 1 and found[2][0] == 0 and set(found) <= {1, 2, 3, 5, 7}, found
    values = []
    for number, kind, value in job.protobuf(found.get(5, (2, b""))[1]):
        assert (number, kind) == (1, 2)
        (tag_number, _, tag), (value_number, value_kind, number) = job.protobuf(value)
        assert (tag_number, value_number, value_kind) == (1, 2, 5)
        values.append((tag.decode(), number))
    start = 7 in found and list(job.protobuf(found[7][1])) == [(1, 0, 1)]
    version = found.get(3, (2, None))[1]
    return {"time": found[1][1], "step": found[2][1], "version": version, "start": start, "values": values}


def files(run):
    return sorted(run.glob("events.out.tfevents.*"))


def scalars(run):
    """Returns (tag, step) -> value over all files in order. By TensorBoard's rule, a new session replaces older values
    from its first step on. Fails if a value comes twice."""
    seen, started = {}, False
    for path in files(run):
        events = [event(record) for record in records(path.read_bytes())]
        assert events[0]["version"] == b"brain.Event:2", events[0]
        assert [one["time"] for one in events] == sorted(one["time"] for one in events)
        assert abs(events[-1]["time"] - time.time()) < 600
        for one in events:
            if one["start"] and started:
                seen = {(tag, step): value for (tag, step), value in seen.items() if step < one["step"]}
            started |= one["start"]
            for tag, value in one["values"]:
                assert (tag, one["step"]) not in seen, (tag, one["step"], path)
                seen[tag, one["step"]] = value
    return seen


def expected(run):
    """Returns the same from metrics.jsonl, in the precision of the events."""
    found, step = {}, 0
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        kind = "step" if "step" in line else "epoch"
        step = line.get("step", step)
        for name in set(line) - {"step", "epoch", "skipped"}:  # these are not plotted
            value = math.nan if line[name] is None else line[name]
            found[f"{kind}/{name}", step] = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


class Events(job.JobTest):
    def convert(self, folder):
        self.succeed([sys.executable, SCRIPT, str(folder)])

    def check(self, run):
        seen, wanted = scalars(run), expected(run)
        self.assertEqual(set(seen), set(wanted))
        for key, value in wanted.items():
            self.assertTrue(seen[key] == value or math.isnan(value) and math.isnan(seen[key]), (key, seen[key], value))
        if event_accumulator:
            reader = event_accumulator.EventAccumulator(str(run), {event_accumulator.SCALARS: 0}).Reload()
            got = {(tag, one.step): one.value for tag in reader.Tags()["scalars"] for one in reader.Scalars(tag)}
            self.assertEqual(set(got), set(wanted))
        return seen

    def test_all_metrics_once(self):
        run = self.train(1, "run", *job.TINY, "--epochs", "2")
        bad = self.train(1, "bad", *job.TINY, "--steps", "3", "--lr", "1e30", "--on-nan", "skip")
        self.succeed([str(job.BUILD / "train_cifar"), "sweep", "--run-name", "sweep", "--grid", "seed=1,2", *job.TINY,
                      "--epochs", "1", "--batch-size", "100"])
        for _ in range(2):  # the second time replaces the files
            self.convert(self.runs)
            seen = self.check(run)
            self.assertEqual({step for tag, step in seen if tag == "step/loss"}, set(range(1, 41)))
            for tag in ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "images_per_s"):
                self.assertEqual({step for name, step in seen if name == "epoch/" + tag}, {20, 40})
            self.assertEqual(len(files(run)), 1)
            self.assertTrue(math.isnan(self.check(bad)["step/loss", 3]))
            for trial in ("1", "2"):
                self.assertIn(("epoch/validation_accuracy", 9), self.check(self.runs / "sweep" / "trials" / trial))
        self.refuse([sys.executable, SCRIPT, "none"], "expected runs with a metrics.jsonl in none, got none")

    def test_follow(self):
        run = self.runs / "run"
        run.mkdir(parents=True)
        metrics = run / "metrics.jsonl"

        def lines(*steps):
            return "".join(f'{{"step": {step}, "epoch": 1, "loss": {step / 4}}}\n' for step in steps)

        def shown(*steps):
            try:
                return scalars(run) == {("step/loss", step): step / 4 for step in steps}
            except (AssertionError, IndexError, struct.error):  # a file that is written at this moment
                return False

        metrics.write_text(lines(1, 2) + "damaged\n[1]\n" + lines(3)[:-5])
        process = self.start([sys.executable, SCRIPT, "--follow", str(self.runs)])
        self.assertTrue(self.wait_for(process, lambda: shown(1, 2)))
        with metrics.open("a") as file:
            file.write(lines(3)[-5:] + lines(4))
        self.assertTrue(self.wait_for(process, lambda: shown(1, 2, 3, 4)))
        # A resumed training replaces the file.
        (run / "new").write_text(lines(1, 2))
        (run / "new").rename(metrics)
        self.assertTrue(self.wait_for(process, lambda: shown(1, 2)))
        process.send_signal(signal.SIGINT)
        self.expect_end(process)


job.main()
