# Tests event files for TensorBoard with an independent reader (TFRecord frames with a bitwise CRC, protobuf by its wire
# format), and with TensorBoard if it is installed.
import json
import math
import struct
import time

import job

try:
    from tensorboard.backend.event_processing import event_accumulator
except ImportError:
    event_accumulator = None


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
        for ranks in job.rank_counts(1, 2):
            run = self.train(ranks, f"run-{ranks}", *job.TINY, "--epochs", "2", "--tensorboard")
            seen = self.check(run)
            self.assertEqual({step for tag, step in seen if tag == "step/loss"}, set(range(1, 41)))
            for tag in ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "images_per_s"):
                self.assertEqual({step for name, step in seen if name == "epoch/" + tag}, {20, 40})
            self.assertEqual(len(files(run)), 1)
        run = self.train(1, "without", *job.TINY, "--steps", "1")
        self.assertEqual(files(run), [])
        run = self.train(1, "bad", *job.TINY, "--steps", "3", "--lr", "1e30", "--on-nan", "skip", "--tensorboard")
        self.assertTrue(math.isnan(self.check(run)["step/loss", 3]))

    def test_resumed(self):
        options = [*job.TINY, "--checkpoint-every", "5", "--keep", "9", "--tensorboard"]
        run = self.train(1, "run", *options, "--steps", "28")
        for path in (run / "checkpoint").iterdir():  # as after a kill before the later ones
            if int(path.stem[5:]) > 15:
                path.unlink()
        self.succeed(job.train(1, "--resume", "--run-name", "run", "--steps", "45"))
        self.assertEqual(len(files(run)), 2)
        steps = [one["step"] for path in files(run) for one in map(event, records(path.read_bytes()))
                 if "step/loss" in dict(one["values"])]
        self.assertEqual(len(steps) - len(set(steps)), 28 - 15)  # the rule removes these
        self.check(run)
        # A record that a kill has truncated ends its file, without an error.
        last = files(run)[-1]
        last.write_bytes(last.read_bytes() + b"\x30\0\0")
        self.succeed(job.train(1, "--resume", "--run-name", "run", "--steps", "50"))
        self.assertEqual(files(run)[1], last)
        self.assertEqual([event(record)["step"] for record in records(files(run)[2].read_bytes())][:2], [0, 46])

    def test_trials(self):
        self.succeed([str(job.BUILD / "sweep_cifar"), "--run-name", "sweep", "--grid", "seed=1,2", *job.TINY,
                      "--epochs", "1", "--batch-size", "100", "--tensorboard"])
        for trial in ("1", "2"):
            self.assertIn(("epoch/validation_accuracy", 9), self.check(self.runs / "sweep" / "trials" / trial))


job.main()
